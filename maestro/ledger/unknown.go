package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// rowReader is a connection, or a transaction.
type rowReader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// States reads the works that a consumer's agent should hold, and its unknown works, in the
// form in which server and agent compare them.
//
// With a scope it reads the works of these buckets only, by an index: an agent
// with many works lists them in many messages, and each is compared by itself.
func States(ctx context.Context, db rowReader, consumer work.Consumer, life string, scope *Scope) ([]work.WorkState,
	error) {
	rows, err := db.Query(
		ctx, `select id, wanted, deleting, status_hash, $2::text from ledger where consumer = $1 and gone_at is null`+
			scope.SQL(3)+`
		union all select id, generation, false, status_hash, life from unknown_work where consumer = $1`+scope.SQL(3), append([]any{consumer, life}, scope.Args()...)...)
	if err != nil {
		return nil, err
	}
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w work.WorkState, err error) {
		err = row.Scan(&w.ID, &w.Version, &w.Deleting, &w.Status, &w.Life)
		return ComparableState(w), err
	})
	if err != nil {
		return nil, fmt.Errorf("reading what %s is to hold: %w", consumer, err)
	}
	return states, nil
}

// ComparableState returns a work in the form of comparisons: a work under deletion has no
// status, and neither has one whose status is empty.
func ComparableState(w work.WorkState) work.WorkState {
	w.Status = digest.ShortStatus(w.Status)
	if w.Deleting || w.Status == digest.ShortStatus(bundle.EmptyHash) {
		w.Status = ""
	}
	return w
}

// ReplaceUnknown replaces the records of a consumer's unknown works; with scope, of those
// in the scope.
func ReplaceUnknown(ctx context.Context, tx *store.Tx, consumer work.Consumer, ids []work.ID,
	versions map[work.ID]int64,
	scope *Scope) error {
	rows, err := tx.Query(ctx, `select id from unknown_work where consumer = $1 and not id = any($2::text[])`+scope.SQL(
		3)+` order by id for update`,
		append([]any{consumer, ids}, scope.Args()...)...)
	if err != nil {
		return err
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[work.ID])
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		if _, err := tx.Exec(ctx, `delete from unknown_work where consumer = $1 and id = any($2::text[])`, consumer,
			gone); err != nil {
			return err
		}
	}
	if len(ids) == 0 {
		return nil
	}
	generations := make([]int64, len(ids))
	for i, id := range ids {
		generations[i] = versions[id]
	}
	_, err = tx.Exec(
		ctx,
		`insert into unknown_work (consumer, id, generation) select $1, id, generation from unnest($2::text[], $3::bigint[]) as u(id, generation)
		on conflict (consumer, id) do update set generation = excluded.generation where unknown_work.generation <> excluded.generation`,
		consumer,
		ids,
		generations,
	)
	return err
}

// RecordUnknownStatuses keeps the status hashes of unknown works, so that they do
// not differ at the next comparison.
func RecordUnknownStatuses(ctx context.Context, tx *store.Tx, consumer work.Consumer, states []work.WorkState) error {
	ids, hashes, lives := make([]work.ID, len(states)), make([]string, len(states)), make([]string, len(states))
	for i, w := range states {
		ids[i], hashes[i], lives[i] = w.ID, w.Status, w.Life
	}
	_, err := tx.Exec(
		ctx,
		`update unknown_work w set status_hash = u.hash, life = u.life from unnest($2::text[], $3::text[], $4::text[]) as u(id, hash, life)
		where w.consumer = $1 and w.id = u.id and (w.status_hash <> u.hash or w.life <> u.life)`,
		consumer,
		ids,
		hashes,
		lives,
	)
	return err
}

// AdoptionsWanted returns the unknown works of a consumer that operators want adopted, at most 100.
func (l *Ledger) AdoptionsWanted(ctx context.Context, consumer work.Consumer) (ids []work.ID, err error) {
	err = l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id from unknown_work where consumer = $1 and adopt_source <> '' order by id limit 100`,
			consumer,
		)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[work.ID])
		return err
	})
	return ids, err
}

// DeletedGeneration locks the tombstone of a work, and returns the generation at which its agent was ordered to delete
// it; 0 without a tombstone. A new bundle of this id must have a later generation: the deletion of an unknown work has
// its agent's generation, which no document of the store continues, and the agent refuses orders up to that generation
// for minutes after the deletion.
func DeletedGeneration(ctx context.Context, tx *store.Tx, id work.ID) (generation int64, err error) {
	err = tx.QueryRow(ctx, `select wanted from ledger where id = $1 and gone_at is not null for no key update`, id).
		Scan(&generation)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("reading the tombstone of %s: %w", id, err)
	}
	return generation, nil
}
