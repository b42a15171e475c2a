package peers

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

// Schema makes the table in which each server renews its row.
const Schema = `
create table server_presence (
	id       text primary key,
	since    timestamptz not null default now(),
	alive_at timestamptz not null
);
`

const (
	aliveEvery = 500 * time.Millisecond
	// DeadAfter is how old the last renewal of a dead server's row is at least.
	DeadAfter = 2 * time.Second
)

// Run renews this server's row and removes the rows of dead servers, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	var onTime time.Time // every renewal since then was on time
	var last time.Time
	for {
		err := s.renew(ctx)
		if err == nil {
			err = s.readLife(ctx)
		}
		now := time.Now()
		switch {
		case err != nil || now.Sub(last) > DeadAfter/2:
			// After a delay of its own, or an outage of the database, this server
			// cannot know whether the other servers are dead.
			onTime = now
		}
		if err == nil {
			last = now
			if now.Sub(onTime) >= DeadAfter {
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

// renew renews this server's row, and decides whether this server leads.
func (s *Server) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, DeadAfter/2)
	defer cancel()
	leads := false
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, `
			with me as (insert into server_presence (id, alive_at) values ($1, now()) on conflict (id) do update set alive_at = now() returning id, since)
			select not exists (select 1 from server_presence p, me where p.id <> me.id and p.alive_at >= now() - $2::interval and (p.since, p.id) < (me.since, me.id))`,
			s.instance, DeadAfter).Scan(&leads)
	})
	s.leads.Store(err == nil && leads)
	return err
}

// removeDeadServers removes the rows of servers that stopped renewing them. The one server
// that removes a row asks all agents to compare.
func (s *Server) removeDeadServers(ctx context.Context) error {
	var dead []string
	err := s.store.Tx(ctx, func(tx *store.Tx) error {
		rows, err := tx.Query(ctx, `delete from server_presence where id in (
				select id from server_presence where alive_at < now() - $1::interval and id <> $2 order by id for update skip locked) returning id`, DeadAfter, s.instance)
		if err != nil {
			return err
		}
		dead, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return fmt.Errorf("removing dead servers: %w", err)
	}
	if len(dead) > 0 {
		s.log.LogAttrs(ctx, slog.LevelWarn, "another server is gone; asking agents for statuses that it may have lost",
			slog.Any("servers", dead))
		s.deadServers.Add(float64(len(dead)))
		s.askAll()
	}
	return nil
}

// markStopped makes the other servers treat this server as dead at once: statuses that the
// broker gave it may be lost also when it stops in good order.
func (s *Server) markStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `update server_presence set alive_at = '-infinity' where id = $1`, s.instance)
		return err
	})
}

// readLife reads the database's life, the first part of every cursor. A database that was
// rebuilt or restored has another life.
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
