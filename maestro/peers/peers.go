// Package peers finds servers that share Maestro's database and have died.
//
// Each server renews a row in the table server_presence. When a server stops renewing its row, the statuses that the
// broker gave it and that it had not committed are lost, since a broker keeps no messages of a disconnected client.
// The server that deletes the row asks all agents to compare. A server acknowledges a status after its commit, so no
// other status can be lost.
//
// Only package maestro and its packages import it.
package peers

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

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

// Options are the parameters of Open. All are needed.
type Options struct {
	Store       *store.Store
	AskAll      func()             // asks all agents to compare; called after a server died
	DeadServers prometheus.Counter // rows of dead servers that this server deleted
	Logger      *slog.Logger
}

// Peers is this server among the servers that share a database. It is safe for concurrent use.
type Peers struct {
	o        Options
	instance string       // this server's name among the servers of the database
	dbLife   atomic.Value // string: the database's life, shortened
	leads    atomic.Bool
}

// Open reads the life of the database and returns a Peers that has no row until Run.
func Open(ctx context.Context, o Options) (*Peers, error) {
	p := &Peers{o: o, instance: uuid.NewString()}
	if err := p.readLife(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Leads reports whether this server reports the presence of agents to CLM: the live server that started first does.
func (p *Peers) Leads() bool { return p.leads.Load() }

// Life returns the database's life. Specs and comparisons carry it, since generations of
// different lives cannot be compared.
func (p *Peers) Life() string {
	life, _ := p.dbLife.Load().(string)
	return life
}

// Run renews this server's row and removes the rows of dead servers, until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	var onTime time.Time // every renewal since then was on time
	var last time.Time
	for {
		err := p.renew(ctx)
		if err == nil {
			err = p.readLife(ctx)
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
				err = p.removeDeadServers(ctx)
			}
		}
		if err != nil && ctx.Err() == nil {
			p.o.Logger.LogAttrs(ctx, slog.LevelDebug, "presence not renewed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			p.markStopped(context.WithoutCancel(ctx))
			return nil
		case <-tick.C:
		}
	}
}

// renew renews this server's row, and decides whether this server leads.
func (p *Peers) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, DeadAfter/2)
	defer cancel()
	leads := false
	err := p.o.Store.Tx(ctx, func(tx *store.Tx) error {
		return tx.QueryRow(ctx, `
			with me as (insert into server_presence (id, alive_at) values ($1, now()) on conflict (id) do update set alive_at = now() returning id, since)
			select not exists (select 1 from server_presence p, me where p.id <> me.id and p.alive_at >= now() - $2::interval and (p.since, p.id) < (me.since, me.id))`,
			p.instance, DeadAfter).Scan(&leads)
	})
	p.leads.Store(err == nil && leads)
	return err
}

// removeDeadServers removes the rows of servers that stopped renewing them. The one server
// that removes a row asks all agents to compare.
func (p *Peers) removeDeadServers(ctx context.Context) error {
	var dead []string
	err := p.o.Store.Tx(ctx, func(tx *store.Tx) error {
		rows, err := tx.Query(ctx, `delete from server_presence where id in (
				select id from server_presence where alive_at < now() - $1::interval and id <> $2 order by id for update skip locked) returning id`, DeadAfter, p.instance)
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
		p.o.Logger.LogAttrs(ctx, slog.LevelWarn, "another server is gone; asking agents for statuses that it may have lost",
			slog.Any("servers", dead))
		p.o.DeadServers.Add(float64(len(dead)))
		p.o.AskAll()
	}
	return nil
}

// markStopped makes the other servers treat this server as dead at once: statuses that the
// broker gave it may be lost also when it stops in good order.
func (p *Peers) markStopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = p.o.Store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `update server_presence set alive_at = '-infinity' where id = $1`, p.instance)
		return err
	})
}

// readLife reads the database's life, the first part of every cursor. A database that was
// rebuilt or restored has another life.
func (p *Peers) readLife(ctx context.Context) error {
	page, err := p.o.Store.List(ctx, store.Query{Kind: bundle.ConsumerKind, Limit: 1, WireOnly: true})
	if err != nil {
		return fmt.Errorf("reading the life of the database: %w", err)
	}
	life, _, _ := strings.Cut(string(page.Cursor), ".")
	if life == "" {
		return fmt.Errorf("reading the life of the database: %w", store.ErrUnavailable)
	}
	p.dbLife.Store(life[:min(len(life), 8)])
	return nil
}
