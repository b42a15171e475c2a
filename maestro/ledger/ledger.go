// Package ledger keeps the wanted and the acknowledged generation of each work, and the course of its delivery.
//
// Its rows are written in the transactions that change bundles (I5), so the works that are still to be delivered can be
// read from it at any moment, after any crash. It also keeps the works that agents hold and no source has, and the
// tombstones of deleted bundles. Only package maestro and its packages import it.
package ledger

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// Ledger reads and writes the wanted and acknowledged generations of works.
type Ledger struct{ store *store.Store }

// New returns the ledger in a database of Maestro.
func New(st *store.Store) *Ledger { return &Ledger{st} }

// RecordOrder records the order to an agent to apply the bundle d, or to delete it. The caller
// calls it in the transaction that wrote d.
func RecordOrder(ctx context.Context, tx *store.Tx, d store.Document, spec bundle.Spec) error {
	_, err := tx.Exec(
		ctx,
		`insert into ledger as l (id, consumer, source, wanted, deleting, version_offset) values ($1, $2, $3, $4, $5, $6)
		on conflict (id) do update set consumer = excluded.consumer, source = excluded.source, wanted = excluded.wanted, deleting = excluded.deleting,
			version_offset = excluded.version_offset,
			accepted_at = now(), first_sent_at = null, sent_at = null, received_at = null, applied_at = null, attempts = 0, last_error = '',
			acknowledged = case when l.gone_at is null then l.acknowledged else 0 end,
			sequence = case when l.gone_at is null then l.sequence else '' end,
			status_hash = case when l.gone_at is null then l.status_hash else '' end, gone_at = null, unconfirmed = false`,
		d.ID,
		d.Scope,
		spec.Source,
		d.Generation,
		d.DeletedAt != nil,
		spec.Offset,
	)
	if err != nil {
		return fmt.Errorf("writing the ledger of bundle %s: %w", d.ID, err)
	}
	return nil
}

// Lock locks a bundle's row. Each transaction that changes a bundle and its ledger locks the ledger
// first, and several rows in the order of their ids.
func Lock(ctx context.Context, tx *store.Tx, id work.ID) error {
	_, err := tx.Exec(ctx, `select from ledger where id = $1 for no key update`, id)
	return err
}

// PendingWork is a work that is not acknowledged, and how often it was sent.
type PendingWork struct {
	delivery.Work
	Attempts int
}

// pendingPage is the number of unacknowledged works that one query reads. A page takes
// milliseconds, also when very many works are unacknowledged.
const pendingPage = 2000

// PendingWorks reads the unacknowledged works of the named consumers, or of all when none
// is named, ordered by consumer, and calls take with each page. A work that changes
// meanwhile is in a page in its old or new state, or in none; the feed has the change.
func (l *Ledger) PendingWorks(ctx context.Context, take func([]PendingWork), consumers ...work.Consumer) error {
	after := delivery.Work{}
	for {
		var page []PendingWork
		err := l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
			rows, err := c.Query(ctx, `select id, consumer, wanted, deleting, attempts from ledger
				where gone_at is null and (deleting or wanted > acknowledged) and ($1::text[] is null or consumer = any($1)) and (consumer, id) > ($2, $3)
				order by consumer, id limit $4`, consumers, after.Consumer, after.ID, pendingPage)
			if err != nil {
				return err
			}
			page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w PendingWork, err error) {
				err = row.Scan(&w.ID, &w.Consumer, &w.Generation, &w.Deleting, &w.Attempts)
				return w, err
			})
			return err
		})
		if err != nil {
			return fmt.Errorf("reading unacknowledged works: %w", err)
		}
		if len(page) > 0 {
			take(page)
			after = page[len(page)-1].Work
		}
		if len(page) < pendingPage {
			return nil
		}
	}
}

// Snapshot is the state of a work by which a deliverer decides whether to send it again.
type Snapshot struct {
	Acknowledged int64
	Gone         bool
}

// Snapshots reads the ledger of some bundles.
func (l *Ledger) Snapshots(ctx context.Context, ids []work.ID) (map[work.ID]Snapshot, error) {
	found := make(map[work.ID]Snapshot, len(ids))
	err := l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select id, acknowledged, gone_at is not null from ledger where id = any($1)`, ids)
		if err != nil {
			return err
		}
		var id work.ID
		var snap Snapshot
		_, err = pgx.ForEachRow(rows, []any{&id, &snap.Acknowledged, &snap.Gone}, func() error {
			found[id] = snap
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	return found, nil
}

// Attempt is one publish, for the record.
type Attempt struct {
	ID         work.ID
	Generation int64
	Deleting   bool // a deletion has the generation of the deleted work
	At         time.Time
	Err        string
}

// RecordAttempts records publishes, for operators who look for an undelivered work.
// Delivery does not depend on the record. An attempt is recorded after its publish;
// an attempt of an older generation is left out.
func (l *Ledger) RecordAttempts(ctx context.Context, notes []Attempt) error {
	ids, generations := make([]work.ID, len(notes)), make([]int64, len(notes))
	deleting, times, errs := make([]bool, len(notes)), make([]time.Time, len(notes)), make([]string, len(notes))
	for i, n := range notes {
		ids[i], generations[i], deleting[i], times[i], errs[i] = n.ID, n.Generation, n.Deleting, n.At, n.Err
	}
	return l.store.Tx(ctx, func(tx *store.Tx) error {
		// Rows are locked in the order of their ids, as in every transaction that locks several. The
		// condition on wanted is checked again after the lock.
		_, err := tx.Exec(ctx, `with n as materialized (
				select id, generation, deleting, max(at) filter (where err = '') as at, count(*) as attempts, max(err) as err
				from unnest($1::text[], $2::bigint[], $3::boolean[], $4::timestamptz[], $5::text[]) as u(id, generation, deleting, at, err) group by 1, 2, 3
			), locked as (
				select n.* from ledger l join n on l.id = n.id and l.wanted = n.generation and l.deleting = n.deleting order by l.id for no key update of l
			)
			update ledger l set sent_at = coalesce(n.at, l.sent_at), first_sent_at = coalesce(l.first_sent_at, n.at), attempts = l.attempts + n.attempts, last_error = n.err
			from locked n where l.id = n.id`, ids, generations, deleting, times, errs)
		return err
	})
}

// DeliveryOf reads how far a bundle's delivery has come.
func (l *Ledger) DeliveryOf(ctx context.Context, id work.ID) (*api.Delivery, error) {
	var d api.Delivery
	err := l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		d = api.Delivery{}
		err := c.QueryRow(
			ctx,
			`select accepted_at, sent_at, received_at, applied_at, greatest(0, acknowledged - version_offset), attempts, last_error,
				case when gone_at is null and (deleting or wanted > acknowledged) then first_sent_at end from ledger where id = $1`,
			id,
		).
			Scan(&d.AcceptedAt, &d.SentAt, &d.ReceivedAt, &d.AppliedAt, &d.AcknowledgedGeneration, &d.Attempts,
				&d.LastError, &d.UnansweredSince)
		if err == pgx.ErrNoRows {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the delivery of bundle %s: %w", id, err)
	}
	for _, t := range []*time.Time{d.AcceptedAt, d.SentAt, d.ReceivedAt, d.AppliedAt, d.UnansweredSince} {
		if t != nil {
			*t = t.UTC()
		}
	}
	return &d, nil
}

// Acknowledgement is the change of the ledger by one status.
type Acknowledgement struct {
	ID         work.ID
	Generation int64
	Sequence   string
	Hash       string     // of the status that replaced the stored one; "" if none did
	ReceivedAt *time.Time // when they belong to the wanted generation
	AppliedAt  *time.Time
	Gone       bool
}

// RecordAcknowledgements writes acknowledgements, sorted by id, in the transaction that
// takes their statuses.
func RecordAcknowledgements(ctx context.Context, tx *store.Tx, acks []Acknowledgement) error {
	n := len(acks)
	ids, generations, sequences, hashes := make([]work.ID, n), make([]int64, n), make([]string, n), make([]string, n)
	received, applied, gone := make([]*time.Time, n), make([]*time.Time, n), make([]bool, n)
	for i, a := range acks {
		ids[i], generations[i], sequences[i], hashes[i] = a.ID, a.Generation, a.Sequence, a.Hash
		received[i], applied[i], gone[i] = a.ReceivedAt, a.AppliedAt, a.Gone
	}
	_, err := tx.Exec(
		ctx,
		`update ledger l set acknowledged = greatest(l.acknowledged, a.generation), acknowledged_at = clock_timestamp(),
			sequence = case when a.sequence = '' then l.sequence else a.sequence end,
			status_hash = case when a.hash = '' then l.status_hash else a.hash end,
			received_at = coalesce(l.received_at, case when a.generation = l.wanted then coalesce(a.received, now()) end),
			applied_at = coalesce(l.applied_at, case when a.generation = l.wanted then a.applied end),
			gone_at = case when a.gone then now() else l.gone_at end
		from unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::boolean[], $7::text[])
			as a(id, generation, sequence, received, applied, gone, hash) where l.id = a.id`,
		ids,
		generations,
		sequences,
		received,
		applied,
		gone,
		hashes,
	)
	if err != nil {
		return fmt.Errorf("writing acknowledgements: %w", err)
	}
	return nil
}

// LockSequences reads, and locks, the last sequences of some bundles.
func LockSequences(ctx context.Context, tx *store.Tx, ids []work.ID) (map[work.ID]string, error) {
	rows, err := tx.Query(ctx, `select id, sequence from ledger where id = any($1) order by id for no key update`, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[work.ID]string, len(ids))
	var id work.ID
	var sequence string
	if _, err := pgx.ForEachRow(rows, []any{&id, &sequence}, func() error {
		found[id] = sequence
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	return found, nil
}

// HeldBy reads the bundles of a consumer; with a scope, those of its buckets.
func HeldBy(ctx context.Context, tx *store.Tx, consumer work.Consumer, scope *Scope) ([]WantedWork, error) {
	rows, err := tx.Query(
		ctx,
		`select id, wanted, deleting, wanted > acknowledged from ledger where consumer = $1 and gone_at is null`+
			scope.SQL(2),
		append([]any{consumer}, scope.Args()...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h WantedWork, err error) {
		h.Consumer = consumer
		err = row.Scan(&h.ID, &h.Generation, &h.Deleting, &h.Unacknowledged)
		return h, err
	})
}

// LowerAcknowledged records that an agent holds less than it had acknowledged, as its
// list from age ago shows: it was wiped, or restored. The works that it lacks are
// pending again from this commit on. An acknowledgement since then stays: different
// workers take lists and statuses, and may take a list after a later status.
func LowerAcknowledged(
	ctx context.Context,
	tx *store.Tx,
	lacking []delivery.Work,
	versions []work.SpecVersion,
	age time.Duration,
) error {
	has := make(map[work.ID]int64, len(versions))
	for _, v := range versions {
		has[v.ID] = v.Version
	}
	ids, generations := make([]work.ID, 0, len(lacking)), make([]int64, 0, len(lacking))
	for _, h := range lacking {
		if !h.Deleting {
			ids, generations = append(ids, h.ID), append(generations, max(0, has[h.ID]))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `with locked as (select l.id, a.generation from ledger l
				join unnest($1::text[], $2::bigint[]) as a(id, generation) on l.id = a.id
				where l.acknowledged > a.generation and coalesce(l.acknowledged_at < clock_timestamp() - $3::interval, true)
				order by l.id for no key update of l)
		update ledger l set acknowledged = locked.generation from locked where l.id = locked.id`, ids, generations, age)
	return err
}

// TombstonesAmong returns the deleted works among the ids, with their last generation.
func TombstonesAmong(ctx context.Context, tx *store.Tx, consumer work.Consumer, ids []work.ID) (
	[]delivery.Work, error) {
	rows, err := tx.Query(
		ctx,
		`select id, wanted, true from ledger where id = any($1) and consumer = $2 and gone_at is not null order by id`,
		ids,
		consumer,
	)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h delivery.Work, err error) {
		h.Consumer = consumer
		err = row.Scan(&h.ID, &h.Generation, &h.Deleting)
		return h, err
	})
}

// ConfirmDeletion records an agent's report that a work is gone which an operator
// ended without confirmation. It reports whether there was such a work.
func ConfirmDeletion(ctx context.Context, tx *store.Tx, consumer work.Consumer, id work.ID) (bool, error) {
	tag, err := tx.Exec(
		ctx,
		`update ledger set unconfirmed = false, gone_at = now() where id = $1 and consumer = $2 and unconfirmed`,
		id,
		consumer,
	)
	return err == nil && tag.RowsAffected() > 0, err
}

// Tombstone is a deleted bundle, with the last version that its source saw.
type Tombstone struct {
	ID       work.ID
	Consumer work.Consumer
	Version  int64
	At       time.Time
}

// TombstonesOf returns the tombstones of a source's bundles among these ids.
func (l *Ledger) TombstonesOf(ctx context.Context, source string, ids []work.ID) (tombstones []Tombstone, err error) {
	err = l.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id, consumer, wanted - version_offset, gone_at from ledger where id = any($1) and source = $2 and gone_at is not null order by id`,
			ids,
			source,
		)
		if err != nil {
			return err
		}
		tombstones, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Tombstone, err error) {
			err = row.Scan(&t.ID, &t.Consumer, &t.Version, &t.At)
			return t, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading deleted bundles: %w", err)
	}
	return tombstones, nil
}

// LockConsumerForBundle keeps a consumer from being deleted until the transaction ends. Several
// transactions may hold this lock at the same time: each gives the consumer a bundle.
func LockConsumerForBundle(ctx context.Context, tx *store.Tx, name work.Consumer) error {
	_, err := tx.Exec(ctx, "select pg_advisory_xact_lock_shared($1)", consumerLockKey(name))
	return err
}

// LockConsumerForDelete keeps all other transactions from giving a consumer a bundle, and from
// deleting it, until the transaction ends.
func LockConsumerForDelete(ctx context.Context, tx *store.Tx, name work.Consumer) error {
	_, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", consumerLockKey(name))
	return err
}

func consumerLockKey(name work.Consumer) int64 {
	h := fnv.New64a()
	h.Write([]byte("maestro consumer " + name))
	return int64(h.Sum64())
}
