// Package presence records when each agent was last heard and reports to the lifecycle manager which agents are
// present.
//
// Servers that share a database share what they recorded; one of them reports for all. Only package maestro and its
// packages import it.
package presence

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// Schema is the table of when any server last heard each agent, by the database's clock.
// The clocks of two servers are never compared: a server writes how long ago it
// heard an agent, and reads how long ago that was.
const Schema = `
create table agent_seen (
	consumer text primary key,
	seen_at  timestamptz not null
);
alter table agent_seen set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
insert into agent_seen (consumer, seen_at) select name, observed_at from document
	where kind = 'Consumer' and removed_at is null and observed_at is not null;
`

// Tracker records when agents were heard: at most once in recordInterval for
// each consumer, all consumers in one statement, and off the path of events. It
// is safe for concurrent use.
type Tracker struct {
	store    *store.Store
	log      *slog.Logger
	reporter *reporter // nil: presence is not reported

	mu         sync.Mutex
	unrecorded map[string]time.Time // when agents were heard that are not recorded yet
	recorded   map[string]time.Time // what was recorded last of each consumer
}

const (
	recordInterval = 2 * time.Second
	flushInterval  = 500 * time.Millisecond
)

// New returns a Tracker that knows no agent yet.
func New(o Options) *Tracker {
	c := &Tracker{store: o.Store, log: o.Logger, unrecorded: map[string]time.Time{}, recorded: map[string]time.Time{}}
	if o.CLM != nil {
		c.reporter = newReporter(o, c)
	}
	return c
}

// RecordContact notes an event of an agent. It does not wait for the database.
func (c *Tracker) RecordContact(consumer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.reporter != nil {
		c.reporter.heard(consumer, now)
	}
	if now.Sub(c.recorded[consumer]) >= recordInterval {
		c.unrecorded[consumer] = now
	}
}

// ForgetRemoved forgets consumers that are removed.
func (c *Tracker) ForgetRemoved(r store.Round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range r.Changes {
		if d.Kind == bundle.ConsumerKind && d.Removed {
			delete(c.recorded, d.Name)
		}
	}
}

// Run records and reports which agents are heard, until ctx ends.
func (c *Tracker) Run(ctx context.Context) error {
	var group errgroup.Group
	defer group.Wait()
	if c.reporter != nil {
		group.Go(func() error { return c.reporter.run(ctx) })
	}
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.flush(ctx)
		}
	}
}

// flush records all agents that were heard. When it fails the next event of
// each agent brings it again.
func (c *Tracker) flush(ctx context.Context) {
	c.mu.Lock()
	due := c.unrecorded
	c.unrecorded = map[string]time.Time{}
	c.mu.Unlock()
	if len(due) == 0 {
		return
	}
	if err := c.Record(ctx, due); err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "it is not recorded when agents were heard",
			slog.Int("agents", len(due)), slog.Any("error", err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, at := range due {
		c.recorded[name] = at
	}
}

// Record records when agents were heard, by this server's clock, in one
// statement. It does not wait for the disk: the last few hundred milliseconds
// may be lost with a crash of the database.
func (c *Tracker) Record(ctx context.Context, heard map[string]time.Time) error {
	names, ages := make([]string, 0, len(heard)), make([]time.Duration, 0, len(heard))
	now := time.Now()
	for name, at := range heard {
		names, ages = append(names, name), append(ages, max(0, now.Sub(at)))
	}
	return c.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `with o as materialized (select set_config('synchronous_commit', 'off', true))
			insert into agent_seen as a (consumer, seen_at) select u.consumer, clock_timestamp() - u.age from o, unnest($1::text[], $2::interval[]) as u(consumer, age)
			order by u.consumer on conflict (consumer) do update set seen_at = excluded.seen_at where excluded.seen_at > a.seen_at`, names, ages)
		return err
	})
}

// agentSeen is the time of the last event of an agent at any server: a time of the
// database's clock, which distinguishes records, and how long ago that was.
type agentSeen struct {
	At  time.Time
	Ago time.Duration
}

// Recorded reads the last contact of each agent, and the time of the database's
// clock.
func (c *Tracker) Recorded(ctx context.Context) (seen map[string]agentSeen, clock time.Time, err error) {
	err = c.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		seen = map[string]agentSeen{}
		rows, err := conn.Query(
			ctx,
			`select c.now, consumer, seen_at, c.now - seen_at from (select clock_timestamp() as now) c left join agent_seen on true`,
		)
		if err != nil {
			return err
		}
		var name *string
		var at *time.Time
		var ago *time.Duration
		_, err = pgx.ForEachRow(rows, []any{&clock, &name, &at, &ago}, func() error {
			if name != nil {
				seen[*name] = agentSeen{*at, *ago}
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, clock, fmt.Errorf("reading when agents were heard: %w", err)
	}
	return seen, clock, nil
}
