package maestro

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/maestro/delivery"
	"atoll.dev/store"
)

// The ledger has one row for each bundle: what is wanted of its agent, what
// the agent's statuses have acknowledged, and how the delivery went. It is
// written in the transaction that changes the bundle (I5), so what is still to
// be delivered can be read from it at any moment, after any crash, without any
// other memory. When an agent has confirmed a deletion the row stays behind as
// a tombstone: an old message may bring the work to life again on its cluster,
// and then it must be known that it was deleted.
const ledgerSchema = `
create table ledger (
	id           text primary key,
	consumer     text not null,
	source       text not null,
	wanted       bigint not null,
	deleting     boolean not null default false,
	acknowledged bigint not null default 0,
	status_hash  text not null default '', -- of the status that is stored; '' while there is none
	sequence     text not null default '', -- of the last status taken, also of one that changed nothing
	accepted_at  timestamptz not null default now(),
	sent_at      timestamptz,
	received_at  timestamptz,
	applied_at   timestamptz,
	attempts     int not null default 0,
	last_error   text not null default '',
	gone_at      timestamptz
);
create index ledger_pending on ledger (consumer) where gone_at is null and (deleting or wanted > acknowledged);
create index ledger_consumer on ledger (consumer);
create index ledger_source on ledger (source, id);
create index ledger_gone on ledger (gone_at) where gone_at is not null;
alter table ledger set (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What agents hold and we do not know, as of their last resync.
create table unknown_work (
	consumer   text not null,
	id         text not null,
	generation bigint not null,
	first_seen timestamptz not null default now(),
	primary key (consumer, id)
);
`

// The agents that compare digests (021), and when they did last.
const digestSchema = `
create table agent_digest (
	consumer    text primary key,
	answered_at timestamptz not null
);
alter table unknown_work add column status_hash text not null default '';
`

// What an operator ended (022): the tombstone of a bundle whose agent has not
// confirmed that it is gone stays until it has.
const forceSchema = `
alter table ledger add column first_sent_at timestamptz, add column unconfirmed boolean not null default false;
-- The source for which an operator has a work adopted, once its agent has said
-- what it holds.
alter table unknown_work add column adopt_source text not null default '', add column adopt_by text not null default '', add column adopt_reason text not null default '';
`

// acknowledgedSchema: when the last status was taken. An agent's list that came
// before says nothing about what that status acknowledged.
const acknowledgedSchema = `alter table ledger add column acknowledged_at timestamptz;`

// Unknown works are compared by what their agents say of them.
const lifeSchema = `alter table unknown_work add column life text not null default ''`

// Of which consumers it is known what their agents hold: since when, and in
// which life of the database.
const comparedSchema = `
create table agent_compared (
	consumer text primary key,
	life     text not null,
	at       timestamptz not null default now()
);
`

// versionSchema: by how much the generation is above the version that the
// source sees.
const versionSchema = `alter table ledger add column version_offset bigint not null default 0`

// Migrations make the side tables.
func migrations() []string {
	return []string{ledgerSchema, digestSchema, forceSchema, presenceSchema, searchStatistics, acknowledgedSchema,
		lifeSchema, comparedSchema, versionSchema, housekeepingSchema, seenSchema, bucketSchema, slotsSchema}
}

// want records that a bundle is wanted as d says. It belongs in the
// transaction that wrote d.
func want(ctx context.Context, tx *store.Tx, d store.Document, spec specRecord) error {
	_, err := tx.Exec(
		ctx, `insert into ledger as l (id, consumer, source, wanted, deleting, version_offset) values ($1, $2, $3, $4, $5, $6)
		on conflict (id) do update set consumer = excluded.consumer, source = excluded.source, wanted = excluded.wanted, deleting = excluded.deleting,
			version_offset = excluded.version_offset,
			accepted_at = now(), first_sent_at = null, sent_at = null, received_at = null, applied_at = null, attempts = 0, last_error = '',
			acknowledged = case when l.gone_at is null then l.acknowledged else 0 end,
			sequence = case when l.gone_at is null then l.sequence else '' end,
			status_hash = case when l.gone_at is null then l.status_hash else '' end, gone_at = null, unconfirmed = false`,
		d.ID, d.Scope, spec.Source, d.Generation, d.DeletedAt != nil, spec.Offset)
	if err != nil {
		return fmt.Errorf("writing the ledger of bundle %s: %w", d.ID, err)
	}
	return nil
}

// lockLedger locks a bundle's row. All who change a bundle and its ledger lock
// the ledger first, and several rows in the order of their ids.
func lockLedger(ctx context.Context, tx *store.Tx, id string) error {
	_, err := tx.Exec(ctx, `select from ledger where id = $1 for no key update`, id)
	return err
}

// pendingWork is a work that is not acknowledged, and how often it was sent.
type pendingWork struct {
	delivery.Work
	attempts int
}

// pendingPage is how many unacknowledged works are read at once: a page takes
// milliseconds, whatever their number.
const pendingPage = 2000

// pendingWorks reads everything that is not acknowledged, of all consumers or of
// those that are named, and hands it over page by page, by consumer. Works that
// change meanwhile come in the old or the new form, or not at all; the feed
// brings them.
func (s *Server) pendingWorks(ctx context.Context, take func([]pendingWork), consumers ...string) error {
	after := delivery.Work{}
	for {
		var page []pendingWork
		err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
			rows, err := c.Query(ctx, `select id, consumer, wanted, deleting, attempts from ledger
				where gone_at is null and (deleting or wanted > acknowledged) and ($1::text[] is null or consumer = any($1)) and (consumer, id) > ($2, $3)
				order by consumer, id limit $4`, consumers, after.Consumer, after.ID, pendingPage)
			if err != nil {
				return err
			}
			page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w pendingWork, err error) {
				err = row.Scan(&w.ID, &w.Consumer, &w.Generation, &w.Deleting, &w.attempts)
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

// deliverySnapshot is what a repetition needs to know before it is sent.
type deliverySnapshot struct {
	acknowledged int64
	gone         bool
}

// snapshots reads the ledger of some bundles.
func (s *Server) snapshots(ctx context.Context, ids []string) (map[string]deliverySnapshot, error) {
	found := make(map[string]deliverySnapshot, len(ids))
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select id, acknowledged, gone_at is not null from ledger where id = any($1)`, ids)
		if err != nil {
			return err
		}
		var id string
		var snap deliverySnapshot
		_, err = pgx.ForEachRow(rows, []any{&id, &snap.acknowledged, &snap.gone}, func() error {
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

// sentNote is one publish, for the record.
type sentNote struct {
	id         string
	generation int64
	deleting   bool // a deletion has the generation of what it deletes
	at         time.Time
	err        string
}

// noteSent records publishes: what people ask "why" for. Delivery itself does
// not depend on it. A note comes after its publish, so one of what is no longer
// wanted counts for nothing.
func (s *Server) noteSent(ctx context.Context, notes []sentNote) error {
	ids, generations := make([]string, len(notes)), make([]int64, len(notes))
	deleting, times, errs := make([]bool, len(notes)), make([]time.Time, len(notes)), make([]string, len(notes))
	for i, n := range notes {
		ids[i], generations[i], deleting[i], times[i], errs[i] = n.id, n.generation, n.deleting, n.at, n.err
	}
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		// In the order of ids, as all who lock several rows do. What is wanted
		// is compared when the row is locked, as it is then.
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

// deliveryOf reads how far a bundle's delivery has come.
func (s *Server) deliveryOf(ctx context.Context, id string) (*api.Delivery, error) {
	var d api.Delivery
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		d = api.Delivery{}
		err := c.QueryRow(
			ctx, `select accepted_at, sent_at, received_at, applied_at, greatest(0, acknowledged - version_offset), attempts, last_error,
				case when gone_at is null and (deleting or wanted > acknowledged) then first_sent_at end from ledger where id = $1`, id).
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

// acknowledgement is what one status adds to the ledger.
type acknowledgement struct {
	id         string
	generation int64
	sequence   string
	hash       string     // of the status that replaced the stored one; "" if none did
	receivedAt *time.Time // when they belong to the wanted generation
	appliedAt  *time.Time
	gone       bool
}

// acknowledge writes acknowledgements, sorted by id, in the transaction that
// takes their statuses.
func acknowledge(ctx context.Context, tx *store.Tx, acks []acknowledgement) error {
	n := len(acks)
	ids, generations, sequences, hashes := make([]string, n), make([]int64, n), make([]string, n), make([]string, n)
	received, applied, gone := make([]*time.Time, n), make([]*time.Time, n), make([]bool, n)
	for i, a := range acks {
		ids[i], generations[i], sequences[i], hashes[i] = a.id, a.generation, a.sequence, a.hash
		received[i], applied[i], gone[i] = a.receivedAt, a.appliedAt, a.gone
	}
	_, err := tx.Exec(
		ctx, `update ledger l set acknowledged = greatest(l.acknowledged, a.generation), acknowledged_at = clock_timestamp(),
			sequence = case when a.sequence = '' then l.sequence else a.sequence end,
			status_hash = case when a.hash = '' then l.status_hash else a.hash end,
			received_at = coalesce(l.received_at, case when a.generation = l.wanted then coalesce(a.received, now()) end),
			applied_at = coalesce(l.applied_at, case when a.generation = l.wanted then a.applied end),
			gone_at = case when a.gone then now() else l.gone_at end
		from unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::boolean[], $7::text[])
			as a(id, generation, sequence, received, applied, gone, hash) where l.id = a.id`,
		ids, generations, sequences, received, applied, gone, hashes)
	if err != nil {
		return fmt.Errorf("writing acknowledgements: %w", err)
	}
	return nil
}

// sequences reads, and locks, the last sequences of some bundles.
func sequences(ctx context.Context, tx *store.Tx, ids []string) (map[string]string, error) {
	rows, err := tx.Query(ctx, `select id, sequence from ledger where id = any($1) order by id for no key update`, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[string]string, len(ids))
	var id, sequence string
	if _, err := pgx.ForEachRow(rows, []any{&id, &sequence}, func() error {
		found[id] = sequence
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	return found, nil
}

// heldBy reads what a consumer is to have; with a scope, of these buckets.
func heldBy(ctx context.Context, tx *store.Tx, consumer string, scope *bucketScope) ([]held, error) {
	rows, err := tx.Query(ctx, `select id, wanted, deleting, wanted > acknowledged from ledger where consumer = $1 and gone_at is null`+
		scope.sql(2), append([]any{consumer}, scope.args()...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h held, err error) {
		err = row.Scan(&h.id, &h.generation, &h.deleting, &h.unacknowledged)
		return h, err
	})
}

// lower takes the word of an agent, which came age ago, that it holds less than
// it had acknowledged: it was wiped, or restored. What it lacks is pending again
// from this commit on. What it has acknowledged since then stays so: lists and
// statuses are taken by different workers, and the one that was sent first may
// be the one that is taken last.
func lower(ctx context.Context, tx *store.Tx, lacking []held, versions []work.SpecVersion, age time.Duration) error {
	has := make(map[string]int64, len(versions))
	for _, v := range versions {
		has[v.ID] = v.Version
	}
	ids, generations := make([]string, 0, len(lacking)), make([]int64, 0, len(lacking))
	for _, h := range lacking {
		if !h.deleting {
			ids, generations = append(ids, h.id), append(generations, max(0, has[h.id]))
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

// buried returns those of the ids that were deleted, with their last
// generation.
func buried(ctx context.Context, tx *store.Tx, consumer string, ids []string) ([]held, error) {
	rows, err := tx.Query(
		ctx, `select id, wanted, true from ledger where id = any($1) and consumer = $2 and gone_at is not null order by id`, ids, consumer)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h held, err error) {
		err = row.Scan(&h.id, &h.generation, &h.deleting)
		return h, err
	})
}

// confirmed takes an agent's word that what an operator had ended is gone. It
// reports whether that was so.
func confirmed(ctx context.Context, tx *store.Tx, consumer, id string) (bool, error) {
	tag, err := tx.Exec(
		ctx, `update ledger set unconfirmed = false, gone_at = now() where id = $1 and consumer = $2 and unconfirmed`, id, consumer)
	return err == nil && tag.RowsAffected() > 0, err
}

// grave is a deleted bundle, with the last version that its source saw.
type grave struct {
	id, consumer string
	version      int64
	at           time.Time
}

// buriedOf returns those of a source's bundles that are gone.
func (s *Server) buriedOf(ctx context.Context, source string, ids []string) (dead []grave, err error) {
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx, `select id, consumer, wanted - version_offset, gone_at from ledger where id = any($1) and source = $2 and gone_at is not null order by id`, ids, source)
		if err != nil {
			return err
		}
		dead, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g grave, err error) {
			err = row.Scan(&g.id, &g.consumer, &g.version, &g.at)
			return g, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading deleted bundles: %w", err)
	}
	return dead, nil
}

// noteUnknown replaces what is recorded of a consumer's unknown works; with
// scope, of those that are in it.
func noteUnknown(ctx context.Context, tx *store.Tx, consumer string, ids []string, versions map[string]int64,
	scope *bucketScope) error {
	rows, err := tx.Query(ctx, `select id from unknown_work where consumer = $1 and not id = any($2::text[])`+scope.sql(
		3)+` order by id for update`,
		append([]any{consumer, ids}, scope.args()...)...)
	if err != nil {
		return err
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[string])
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
		ctx, `insert into unknown_work (consumer, id, generation) select $1, id, generation from unnest($2::text[], $3::bigint[]) as u(id, generation)
		on conflict (consumer, id) do update set generation = excluded.generation where unknown_work.generation <> excluded.generation`, consumer, ids, generations)
	return err
}

// noteUnknownStatuses keeps the status hashes of unknown works, so that they do
// not differ at the next comparison.
func noteUnknownStatuses(ctx context.Context, tx *store.Tx, consumer string, states []work.WorkState) error {
	ids, hashes, lives := make([]string, len(states)), make([]string, len(states)), make([]string, len(states))
	for i, w := range states {
		ids[i], hashes[i], lives[i] = w.ID, w.Status, w.Life
	}
	_, err := tx.Exec(
		ctx, `update unknown_work w set status_hash = u.hash, life = u.life from unnest($2::text[], $3::text[], $4::text[]) as u(id, hash, life)
		where w.consumer = $1 and w.id = u.id and (w.status_hash <> u.hash or w.life <> u.life)`, consumer, ids, hashes, lives)
	return err
}

// compared notes that an agent has said all that it holds, and that what we do
// not know of it is recorded as unknown works.
func (s *Server) compared(ctx context.Context, consumer string) error {
	return s.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, `insert into agent_compared as a (consumer, life) values ($1, $2)
			on conflict (consumer) do update set life = excluded.life, at = now() where a.life <> excluded.life`, consumer, s.life())
		if err != nil {
			return fmt.Errorf("noting that %s was compared: %w", consumer, err)
		}
		return nil
	})
}

// holdings is what is known of an agent and of what it holds.
type holdings struct {
	unknown    int // works that nobody ordered
	comparedAt *time.Time
	seenAt     *time.Time
}

// holdingsOf reads them by consumer, of the named ones.
func (s *Server) holdingsOf(ctx context.Context, names ...string) (map[string]holdings, error) {
	found := map[string]holdings{}
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx, `select n, (select count(*) from unknown_work u where u.consumer = n), (select at from agent_compared a where a.consumer = n and a.life = $2),
			(select seen_at from agent_seen s where s.consumer = n)
			from unnest($1::text[]) n`, names, s.life())
		if err != nil {
			return err
		}
		var name string
		var h holdings
		_, err = pgx.ForEachRow(rows, []any{&name, &h.unknown, &h.comparedAt, &h.seenAt}, func() error {
			found[name] = h
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading what agents hold: %w", err)
	}
	return found, nil
}

// statusHashes reads the hashes of a consumer's statuses, by all of its bundles
// or by those of the ids.
func (s *Server) statusHashes(ctx context.Context, consumer string, ids []string) (hashes []work.StatusHash,
	err error) {
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx, `select id, status_hash from ledger where consumer = $1 and gone_at is null and ($2::text[] is null or id = any($2)) order by id`, consumer, ids)
		if err != nil {
			return err
		}
		hashes, err = pgx.CollectRows(rows, scanHash)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the status hashes of %s: %w", consumer, err)
	}
	return hashes, nil
}

// sourceHashes reads the hashes of the statuses of those of a source's bundles
// that are listed.
func (s *Server) sourceHashes(ctx context.Context, source string, list []work.StatusHash) (hashes []work.StatusHash,
	err error) {
	ids := make([]string, len(list))
	for i, h := range list {
		ids[i] = h.ID
	}
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx, `select id, status_hash from ledger where source = $1 and gone_at is null and id = any($2)`, source, ids)
		if err != nil {
			return err
		}
		hashes, err = pgx.CollectRows(rows, scanHash)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the status hashes of source %s: %w", source, err)
	}
	return hashes, nil
}

func scanHash(row pgx.CollectableRow) (h work.StatusHash, err error) {
	err = row.Scan(&h.ID, &h.Hash)
	if h.Hash == "" {
		h.Hash = emptyHash
	}
	return h, err
}

// consumersWithBundles lists the consumers that have any.
func (s *Server) consumersWithBundles(ctx context.Context) (names []string, err error) {
	err = s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `select distinct consumer from ledger where gone_at is null order by 1`)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing consumers that have bundles: %w", err)
	}
	return names, nil
}

// lockConsumer makes the existence of a consumer stand still for the rest of
// the transaction: shared by those who give it a bundle, exclusive for who
// deletes it.
func lockConsumer(ctx context.Context, tx *store.Tx, name string, exclusive bool) error {
	h := fnv.New64a()
	h.Write([]byte("maestro consumer " + name))
	call := "pg_advisory_xact_lock_shared"
	if exclusive {
		call = "pg_advisory_xact_lock"
	}
	_, err := tx.Exec(ctx, "select "+call+"($1)", int64(h.Sum64()))
	return err
}
