// Package presence records the last contact of each agent and reports to the lifecycle manager which agents are
// present. A contact is the arrival of an event of the agent at a server.
//
// Servers that share a database share their records; one of them reports for all. Only package maestro and its
// packages import it.
package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// Schema is the table of the last contacts of agents with any server, by the database's clock. The
// clocks of two servers are never compared: a server writes and reads the ages of contacts.
const Schema = `
create table agent_seen (
	consumer text primary key,
	seen_at  timestamptz not null
);
alter table agent_seen set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
insert into agent_seen (consumer, seen_at) select name, observed_at from document
	where kind = 'Consumer' and removed_at is null and observed_at is not null;
`

// HostingSchema adds the report of hosting that the last heartbeat of an agent had, as JSON; the empty string when it
// had none.
const HostingSchema = `
alter table agent_seen add column hosting text not null default '';
`

// Tracker records contacts in the database: at most one in recordInterval for each consumer, those of
// all consumers in one statement, and not while an event waits. It is safe for concurrent use.
type Tracker struct {
	store    *store.Store
	log      *slog.Logger
	reporter *reporter // nil: presence is not reported

	mu         sync.Mutex
	unrecorded map[work.Consumer]time.Time // contacts that are not in the database yet
	recorded   map[work.Consumer]time.Time // the last recorded contact of each consumer
	// hosting has the reports of hosting, as JSON, in heartbeats that are not in the database yet; "" for one without a
	// report.
	hosting map[work.Consumer]string
}

const (
	recordInterval = 2 * time.Second
	flushInterval  = 500 * time.Millisecond
)

// New returns a Tracker without contacts.
func New(o Options) *Tracker {
	c := &Tracker{store: o.Store, log: o.Logger, unrecorded: map[work.Consumer]time.Time{},
		recorded: map[work.Consumer]time.Time{}, hosting: map[work.Consumer]string{}}
	if o.CLM != nil {
		c.reporter = newReporter(o, c)
	}
	return c
}

// RecordContact notes an event of an agent. It does not wait for the database.
func (c *Tracker) RecordContact(consumer work.Consumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.reporter != nil {
		c.reporter.recordContact(consumer, now)
	}
	if now.Sub(c.recorded[consumer]) >= recordInterval {
		c.unrecorded[consumer] = now
	}
}

// RecordHosting notes the report of hosting in a heartbeat of an agent. The report is nil when the heartbeat has none.
// The database gets it with the agent's next contact. RecordHosting does not wait for the database.
func (c *Tracker) RecordHosting(consumer work.Consumer, report *work.HostingReport) {
	text := ""
	if report != nil {
		data, err := json.Marshal(report)
		if err != nil {
			return // impossible: it has numbers only
		}
		text = string(data)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosting[consumer] = text
}

// ForgetRemoved forgets consumers that are removed.
func (c *Tracker) ForgetRemoved(r store.Round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range r.Changes {
		if d.Kind == bundle.ConsumerKind && d.Removed {
			delete(c.recorded, work.Consumer(d.Name))
			delete(c.hosting, work.Consumer(d.Name))
		}
	}
}

// Run records contacts and sends reports until ctx ends.
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

// flush records the contacts that are not in the database yet. After an error they are dropped: the
// next event of each agent is a new contact.
func (c *Tracker) flush(ctx context.Context) {
	c.mu.Lock()
	due, hosting := c.unrecorded, map[work.Consumer]string{}
	c.unrecorded = map[work.Consumer]time.Time{}
	for name := range due {
		if report, has := c.hosting[name]; has {
			hosting[name] = report
			delete(c.hosting, name)
		}
	}
	c.mu.Unlock()
	if len(due) == 0 {
		return
	}
	if err := c.Record(ctx, due, hosting); err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "contacts of agents not recorded",
			slog.Int("agents", len(due)), slog.Any("error", err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, at := range due {
		c.recorded[name] = at
	}
}

// Record records contacts, with times of this server's clock, in one statement, together with the reports of hosting
// of the consumers that hosting has. It does not wait for the disk: a crash of the database may lose the last few
// hundred milliseconds. For a consumer that hosting does not have, the report in the row stays as it is when the
// statement has locked the row: another server may have recorded a newer one since the statement began.
func (c *Tracker) Record(ctx context.Context, contacts map[work.Consumer]time.Time, hosting map[work.Consumer]string,
) error {
	names, ages := make([]work.Consumer, 0, len(contacts)), make([]time.Duration, 0, len(contacts))
	now := time.Now()
	for name, at := range contacts {
		names, ages = append(names, name), append(ages, max(0, now.Sub(at)))
	}
	return c.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `with o as materialized (select set_config('synchronous_commit', 'off', true))
			insert into agent_seen as a (consumer, seen_at, hosting)
			select u.consumer, clock_timestamp() - u.age, coalesce($3::jsonb ->> u.consumer, '')
			from o, unnest($1::text[], $2::interval[]) as u(consumer, age) order by u.consumer
			on conflict (consumer) do update set seen_at = excluded.seen_at,
				hosting = coalesce($3::jsonb ->> a.consumer, a.hosting)
			where excluded.seen_at > a.seen_at`, names, ages, hosting)
		return err
	})
}

// agentSeen is the last event of an agent at any server: its time by the database's
// clock, which distinguishes records, how long ago that was, and the last report of hosting.
type agentSeen struct {
	At      time.Time
	Ago     time.Duration
	Hosting string // the report of hosting, as JSON; "" for none
}

// Recorded reads the last contact of each agent, and the time of the database's
// clock.
func (c *Tracker) Recorded(ctx context.Context) (seen map[work.Consumer]agentSeen, clock time.Time, err error) {
	err = c.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		seen = map[work.Consumer]agentSeen{}
		rows, err := conn.Query(
			ctx,
			`select c.now, consumer, seen_at, c.now - seen_at, hosting from (select clock_timestamp() as now) c left join agent_seen on true`,
		)
		if err != nil {
			return err
		}
		var name *work.Consumer
		var at *time.Time
		var ago *time.Duration
		var hosting *string
		_, err = pgx.ForEachRow(rows, []any{&clock, &name, &at, &ago, &hosting}, func() error {
			if name != nil {
				seen[*name] = agentSeen{*at, *ago, *hosting}
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, clock, fmt.Errorf("reading the last contacts of agents: %w", err)
	}
	return seen, clock, nil
}
