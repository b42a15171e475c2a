package maestro

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/store"
)

// seenSchema: when any server heard each agent last, by the database's clock.
// The clocks of two servers are never compared: a server writes how long ago it
// heard an agent, and reads how long ago that was.
const seenSchema = `
create table agent_seen (
	consumer text primary key,
	seen_at  timestamptz not null
);
alter table agent_seen set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
insert into agent_seen (consumer, seen_at) select name, observed_at from document
	where kind = 'Consumer' and removed_at is null and observed_at is not null;
`

// contacts records which agents were heard, at a pace: at most once in
// seenEvery for each consumer, all of them in one statement, and off the path
// of events.
type contacts struct {
	s *Server

	mu    sync.Mutex
	heard map[string]time.Time // not recorded yet
	noted map[string]time.Time // what was recorded last of each consumer
}

const (
	seenEvery = 2 * time.Second
	seenFlush = 500 * time.Millisecond
)

func newContacts(s *Server) *contacts {
	return &contacts{s: s, heard: map[string]time.Time{}, noted: map[string]time.Time{}}
}

// heard takes any event of an agent.
func (s *Server) heard(consumer string) {
	for _, d := range s.deliverers() {
		d.heard(consumer)
	}
	c := s.contacts
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.s.reporter != nil {
		c.s.reporter.heard(consumer, now)
	}
	if now.Sub(c.noted[consumer]) >= seenEvery {
		c.heard[consumer] = now
	}
}

// changed forgets consumers that are removed.
func (c *contacts) changed(r store.Round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range r.Changes {
		if d.Kind == kindConsumer && d.Removed {
			delete(c.noted, d.Name)
		}
	}
}

func (c *contacts) run(ctx context.Context) error {
	tick := time.NewTicker(seenFlush)
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
func (c *contacts) flush(ctx context.Context) {
	c.mu.Lock()
	due := c.heard
	c.heard = map[string]time.Time{}
	c.mu.Unlock()
	if len(due) == 0 {
		return
	}
	if err := c.s.noteSeen(ctx, due); err != nil {
		c.s.log.LogAttrs(ctx, slog.LevelDebug, "it is not recorded when agents were heard",
			slog.Int("agents", len(due)), slog.Any("error", err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, at := range due {
		c.noted[name] = at
	}
}

// noteSeen records when agents were heard, by this server's clock, in one
// statement. It does not wait for the disk: the last few hundred milliseconds
// may be lost with a crash of the database.
func (s *Server) noteSeen(ctx context.Context, heard map[string]time.Time) error {
	names, ages := make([]string, 0, len(heard)), make([]time.Duration, 0, len(heard))
	now := time.Now()
	for name, at := range heard {
		names, ages = append(names, name), append(ages, max(0, now.Sub(at)))
	}
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `with o as materialized (select set_config('synchronous_commit', 'off', true))
			insert into agent_seen as a (consumer, seen_at) select u.consumer, clock_timestamp() - u.age from o, unnest($1::text[], $2::interval[]) as u(consumer, age)
			order by u.consumer on conflict (consumer) do update set seen_at = excluded.seen_at where excluded.seen_at > a.seen_at`, names, ages)
		return err
	})
}

// agentSeen is when an agent was heard last by any server: at a time of the
// database's clock, which tells records apart, and how long ago that was.
type agentSeen struct {
	at  time.Time
	ago time.Duration
}

// lastSeen reads when each agent was heard last, and what the database's clock
// shows.
func (s *Server) lastSeen(ctx context.Context) (seen map[string]agentSeen, clock time.Time, err error) {
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		seen = map[string]agentSeen{}
		rows, err := c.Query(
			ctx, `select c.now, consumer, seen_at, c.now - seen_at from (select clock_timestamp() as now) c left join agent_seen on true`)
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
