// Package housekeeping deletes rows of Maestro's database that no client and no server needs any more, from the
// feed, the history and the ledger.
//
// Each server that shares the database tries each task; the row of a task has the time of its last run, so one
// server runs it. A task deletes all due rows in small transactions with pauses, so that it does not slow delivery.
//
// Only package maestro and its packages import it.
package housekeeping

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pause"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// Schema makes the table of the tasks' last runs.
const Schema = `
create table housekeeping (
	task   text primary key,
	ran_at timestamptz not null
);
`

const (
	taskEvery     = 10 * time.Minute // between two runs of a task, by any server
	checkEvery    = time.Minute      // between two checks of the tasks
	PurgeBatch    = 2000             // rows of one transaction
	manifestBatch = 200              // bundles of one transaction; one may have 500 KB
	purgePause    = 100 * time.Millisecond

	// feedMemory is how long the feed keeps changes: a watch whose cursor is older must list again.
	feedMemory = 24 * time.Hour

	// manifestAge is how long a deleted bundle keeps its manifests, Secrets among them:
	// for watches that are connected or reconnect soon.
	manifestAge = 10 * time.Minute

	// changeAge is how long the history keeps the author of a change. The store reads it
	// within seconds, when the answer to a commit was lost; people read it for the rest
	// of the day. CLM has the history of customers' orders.
	changeAge = 24 * time.Hour
	// auditAge is how long the history keeps the audit record of a change. The Platform API gathers it within
	// seconds, and after an outage of its own when that has ended.
	auditAge = 90 * 24 * time.Hour
	// operatorAge is how long the history keeps an operator's forced deletions and
	// adoptions, with their reasons.
	operatorAge = 400 * 24 * time.Hour

	// tombstoneAge is how long the ledger keeps a confirmed deletion. When an agent gets
	// the work back, from an old message or a backup of its cluster, the server orders
	// the deletion again. Above MaxTombstones the oldest tombstones are deleted earlier:
	// then such a work is an unknown work, and stays applied. Tombstones of forced
	// deletions that no agent has confirmed are kept.
	tombstoneAge  = 30 * 24 * time.Hour
	MaxTombstones = 100_000
)

// Housekeeper runs the tasks on one database.
type Housekeeper struct {
	store *store.Store
	log   *slog.Logger
}

// New returns a Housekeeper that does nothing until Run.
func New(st *store.Store, log *slog.Logger) *Housekeeper { return &Housekeeper{store: st, log: log} }

// Run runs the due tasks until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	tasks := map[string]func(context.Context) error{
		"feed": func(ctx context.Context) error {
			_, err := h.store.Compact(ctx, time.Now().Add(-feedMemory))
			return err
		},
		"manifests":  h.DropManifests,
		"history":    h.TrimHistory,
		"tombstones": h.PurgeTombstones,
	}
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		for name, run := range tasks {
			claimed, err := h.ClaimTask(ctx, name)
			if err == nil && claimed {
				err = run(ctx)
			}
			if err != nil && ctx.Err() == nil {
				h.log.LogAttrs(ctx, slog.LevelWarn, "housekeeping was interrupted", slog.String("task", name),
					slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ClaimTask claims the next run of a task for this server. It reports false when the task is not due, or another server
// has claimed the run.
func (h *Housekeeper) ClaimTask(ctx context.Context, name string) (claimed bool, err error) {
	err = h.store.Tx(ctx, func(tx *store.Tx) error {
		tag, err := tx.Exec(ctx, `insert into housekeeping as h (task, ran_at) values ($1, now())
			on conflict (task) do update set ran_at = now() where h.ran_at < now() - $2::interval`, name, taskEvery)
		claimed = err == nil && tag.RowsAffected() > 0
		return err
	})
	return claimed, err
}

// purge deletes or changes expired rows, of which what is a name for the log. It runs a statement, whose last
// argument is the largest number of rows to change, until it changes less than half as many. It pauses between two
// runs at least as long as the last run took, so that the database has time for others.
func (h *Housekeeper) purge(ctx context.Context, what string, batch int, sql string, args ...any) error {
	args = append(args, batch)
	for total := int64(0); ; {
		begun := time.Now()
		var n int64
		err := h.store.Tx(ctx, func(tx *store.Tx) error {
			tag, err := tx.Exec(ctx, sql, args...)
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return fmt.Errorf("purging %s after %d rows: %w", what, total, err)
		}
		if total += n; n < int64(batch)/2 {
			if total > 0 {
				h.log.LogAttrs(ctx, slog.LevelDebug, "expired rows purged", slog.String("what", what),
					slog.Int64("rows", total))
			}
			return nil
		}
		if !pause.For(ctx, max(purgePause, time.Since(begun))) {
			return ctx.Err()
		}
	}
}

// DropManifests removes the manifests from the specs of deleted bundles. The documents
// stay for feedMemory, so that a watch that reconnects sees the deletion. DropManifests
// changes them in place, without a new version or an entry in the feed. It begins with
// the deletions of 10 minutes before those that its last run has covered, since
// transactions may have been open then.
func (h *Housekeeper) DropManifests(ctx context.Context) error {
	const done = "manifests, done"
	var from, to time.Time
	err := h.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(
			ctx,
			`select coalesce((select ran_at - interval '10 minutes' from housekeeping where task = $1), 'epoch'), now() - $2::interval`,
			done,
			manifestAge,
		).Scan(&from, &to)
	})
	if err != nil {
		return fmt.Errorf("reading which manifests were dropped: %w", err)
	}
	err = h.purge(ctx, "manifests of deleted bundles", manifestBatch, `with due as materialized (
			select kind, id from document where kind = $1 and removed_at >= $2 and removed_at < $3 and spec->'data' <> '{"manifests":[]}'
			order by removed_at limit $4 for update skip locked)
		update document d set spec = jsonb_set(d.spec, '{data}', '{"manifests":[]}'), sealed = null, sealed_with = null,
			wire = convert_to((convert_from(d.wire, 'UTF8')::jsonb - 'manifest_configs' || '{"manifests":[]}')::text, 'UTF8')
		from due where d.kind = due.kind and d.id = due.id and d.removed_at is not null`, string(bundle.Kind), from, to)
	if err != nil {
		return err
	}
	return h.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(
			ctx,
			`insert into housekeeping (task, ran_at) values ($1, $2) on conflict (task) do update set ran_at = excluded.ran_at`,
			done,
			to,
		)
		return err
	})
}

// TrimHistory deletes old records of changes, and very old records of operators'
// actions. It reads the oldest records only, which are first in the primary key. Records
// of older versions of Maestro have the content of bundles, Secrets included; the same
// rule deletes them.
func (h *Housekeeper) TrimHistory(ctx context.Context) error {
	const changes = `delete from history where (xid, seq) in (select xid, seq from history
		where version > 0 and audit is null order by xid, seq limit $2) and at < now() - $1::interval`
	if err := h.purge(ctx, "records of changes", PurgeBatch, changes, changeAge); err != nil {
		return err
	}
	const audited = `delete from history where (xid, seq) in (select xid, seq from history
		where version > 0 and audit is not null order by xid, seq limit $2) and at < now() - $1::interval`
	if err := h.purge(ctx, "audit records", PurgeBatch, audited, auditAge); err != nil {
		return err
	}
	const all = `delete from history where (xid, seq) in (select xid, seq from history order by xid, seq limit $2) and at < now() - $1::interval`
	return h.purge(ctx, "records of operators", PurgeBatch, all, operatorAge)
}

// PurgeTombstones deletes tombstones of confirmed deletions from the ledger: those older
// than tombstoneAge, and the oldest above MaxTombstones.
func (h *Housekeeper) PurgeTombstones(ctx context.Context) error {
	var before time.Time
	err := h.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(
			ctx,
			`select greatest(now() - $1::interval, (select gone_at from ledger where gone_at is not null and not unconfirmed
			order by gone_at desc offset $2 limit 1))`,
			tombstoneAge,
			MaxTombstones,
		).Scan(&before)
	})
	if err != nil {
		return fmt.Errorf("reading the age of tombstones: %w", err)
	}
	return h.purge(ctx, "tombstones", PurgeBatch,
		`delete from ledger where id in (select id from ledger where gone_at <= $1 and not unconfirmed
		order by gone_at limit $2 for update skip locked)`, before)
}
