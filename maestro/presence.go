package maestro

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// Servers that share a database and the stream of statuses know of each other
// by a row that each renews. When one stops renewing it, what the broker had
// given it and it had not committed is lost, since a broker keeps nothing for
// who is gone; whoever takes its row away asks all agents to compare. A server
// that acknowledged a status had committed it, so nothing else can be missing.
const presenceSchema = `
create table server_presence (
	id       text primary key,
	since    timestamptz not null default now(),
	alive_at timestamptz not null
);
`

const (
	aliveEvery = 500 * time.Millisecond
	deadAfter  = 2 * time.Second
)

// runPresence renews this server's row and looks after the others'.
func (s *Server) runPresence(ctx context.Context) error {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	var well time.Time // since when each renewal came in time
	var last time.Time
	for {
		err := s.renew(ctx)
		if err == nil {
			err = s.readLife(ctx)
		}
		now := time.Now()
		switch {
		case err != nil || now.Sub(last) > deadAfter/2:
			// Who was held up cannot tell whether others are dead, or the
			// database was.
			well = now
		}
		if err == nil {
			last = now
			if now.Sub(well) >= deadAfter {
				err = s.removeDeadServers(ctx)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.log.LogAttrs(ctx, slog.LevelDebug, "presence not renewed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			s.markStopped(context.WithoutCancel(ctx))
			return nil
		case <-tick.C:
		}
	}
}

// renew renews this server's row, and finds out whether this is the server that
// reports the presence of agents: of those alive, the one that began first.
func (s *Server) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deadAfter/2)
	defer cancel()
	leads := false
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, `
			with me as (insert into server_presence (id, alive_at) values ($1, now()) on conflict (id) do update set alive_at = now() returning id, since)
			select not exists (select 1 from server_presence p, me where p.id <> me.id and p.alive_at >= now() - $2::interval and (p.since, p.id) < (me.since, me.id))`,
			s.instance, deadAfter).Scan(&leads)
	})
	s.leads.Store(err == nil && leads)
	return err
}

// removeDeadServers removes the rows of servers that stopped renewing them. Of several servers that
// see one, one takes it, and asks.
func (s *Server) removeDeadServers(ctx context.Context) error {
	var dead []string
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		rows, err := tx.Query(ctx, `delete from server_presence where id in (
				select id from server_presence where alive_at < now() - $1::interval and id <> $2 order by id for update skip locked) returning id`, deadAfter, s.instance)
		if err != nil {
			return err
		}
		dead, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return fmt.Errorf("looking after other servers: %w", err)
	}
	if len(dead) > 0 {
		s.log.LogAttrs(ctx, slog.LevelWarn, "another server is gone; agents are asked for what it may have lost",
			slog.Any("servers", dead))
		s.metrics.deadServers.Add(float64(len(dead)))
		s.askStatuses()
	}
	return nil
}

// markStopped lets the other servers find at once that this one has stopped: what the broker had
// given to this server is lost also when it stops in good order.
func (s *Server) markStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `update server_presence set alive_at = '-infinity' where id = $1`, s.instance)
		return err
	})
}

// readLife reads in which life the database is, which every cursor begins with:
// a lost or restored one begins another.
func (s *Server) readLife(ctx context.Context) error {
	page, err := s.store.List(ctx, store.Query{Kind: bundle.ConsumerKind, Limit: 1, WireOnly: true})
	if err != nil {
		return fmt.Errorf("reading the life of the database: %w", err)
	}
	life, _, _ := strings.Cut(string(page.Cursor), ".")
	if life == "" {
		return fmt.Errorf("reading the life of the database: %w", store.ErrUnavailable)
	}
	s.dbLife.Store(life[:min(len(life), 8)])
	return nil
}

// life is the life of the database in which generations count, as specs and
// comparisons carry it.
func (s *Server) life() string {
	life, _ := s.dbLife.Load().(string)
	return life
}
