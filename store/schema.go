package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"atoll.dev/internal/pause"
)

//go:embed schema.sql
var schema1 string

// namesFree frees the name of a document whose deletion was requested. Such documents stay in the
// index, each by its own id, because what is in a scope is looked up there.
const namesFree = `drop index document_name;
create unique index document_name on document (kind, scope, name, (case when deleted_at is null then '' else id end))
	where removed_at is null and name <> ''`

// quickCompression has large documents compressed by lz4, which takes a fraction of pglz's time,
// where the server has it.
const quickCompression = `do $$ begin
	alter table document alter column spec set compression lz4, alter column status set compression lz4, alter column wire set compression lz4;
	alter table history alter column spec set compression lz4, alter column status set compression lz4;
exception when feature_not_supported then null;
end $$`

// historyOfKinds finds the latest records of a kind.
const historyOfKinds = `create index history_kind on history (kind, seq)`

// narrowFeed moves the feed's index from the documents to a table of its own with one narrow row for each document. A
// document's row then has no index on what each change moves, so that an update that touches no name, label or deletion
// is written in place (HOT): no index entry, and its dead versions are pruned within the page. Triggers keep the two
// together whoever writes a document. The index is not unique: rows that are restored from a dump without their
// triggers disabled come twice, until ensureIncarnation makes the feed anew.
const narrowFeed = `
lock table document in access exclusive mode; -- a process of the release before may be writing
create table feed (xid xid8 not null, kind text not null, id text not null);
insert into feed select xid, kind, id from document;
drop index document_feed;
create index document_feed on feed (xid, kind, id);
alter table feed set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
do $do$ begin
	-- The schema's name is written into it: what restores a dump has no search path.
	execute format($f$create function document_feed() returns trigger language plpgsql as $$ begin
		if tg_op = 'INSERT' then
			insert into %1$I.feed values (new.xid, new.kind, new.id);
		elsif tg_op = 'UPDATE' then
			update %1$I.feed set xid = new.xid where xid = old.xid and kind = old.kind and id = old.id;
			if not found then
				insert into %1$I.feed values (new.xid, new.kind, new.id);
			end if;
		else
			delete from %1$I.feed where xid = old.xid and kind = old.kind and id = old.id;
		end if;
		return null;
	end $$$f$, current_schema());
end $do$;
create trigger document_made after insert or delete on document for each row execute function document_feed();
create trigger document_changed after update of xid on document for each row when (old.xid is distinct from new.xid) execute function document_feed();
alter table document set (fillfactor = 70)`

// packedHistory is where the history keeps packed statuses. Records from before have theirs in the column status.
const packedHistory = `alter table history add column packed bytea;
alter table history alter column packed set storage external`

// splitWire stores the head of the wire form, which has the spec, apart from the rest. A large row then keeps spec and
// head outside of itself, where a change of the status leaves them, and the rest within it, compressed.
const splitWire = `alter table document add column head bytea not null default '';
do $$ begin
	alter table document alter column head set compression lz4;
exception when feature_not_supported then null;
end $$;
alter table document alter column kind set storage main, alter column id set storage main,
	alter column scope set storage main, alter column name set storage main,
	alter column status set storage main, alter column wire set storage main;
alter table document set (toast_tuple_target = 1024, fillfactor = 75)`

// tallies counts the live documents of each kind: a creation adds a row with 1, a removal one with -1, and
// Store.foldTally adds rows up. A single row for each kind would have all creations wait for each other.
const tallies = `
lock table document in access exclusive mode; -- a process of the release before may be writing
create table tally (kind text not null, n bigint not null);
alter table tally set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
insert into tally select kind, count(*) from document where removed_at is null group by kind;
do $do$ begin
	execute format($f$create or replace function document_feed() returns trigger language plpgsql as $$ begin
		if tg_op = 'UPDATE' then
			update %1$I.feed set xid = new.xid where xid = old.xid and kind = old.kind and id = old.id;
			if not found then
				insert into %1$I.feed values (new.xid, new.kind, new.id);
			end if;
		elsif tg_op = 'INSERT' then
			insert into %1$I.feed values (new.xid, new.kind, new.id);
			if new.removed_at is null then
				insert into %1$I.tally values (new.kind, 1);
			end if;
		else
			delete from %1$I.feed where xid = old.xid and kind = old.kind and id = old.id;
			if old.removed_at is null then
				insert into %1$I.tally values (old.kind, -1);
			end if;
		end if;
		return null;
	end $$$f$, current_schema());
	execute format($f$create function document_tally() returns trigger language plpgsql as $$ begin
		insert into %1$I.tally values (new.kind, case when new.removed_at is null then 1 else -1 end);
		return null;
	end $$$f$, current_schema());
end $do$;
-- A trigger of its own: a transaction that changes a document and then removes it has the same xid twice.
create trigger document_removed after update of removed_at on document for each row
	when ((old.removed_at is null) <> (new.removed_at is null)) execute function document_tally()`

// searchFacets have their index on the feed, whose narrow rows are written with each change anyway: an index on a
// column of the documents would end their updates in place, and one on the status most of all.
const searchFacets = `alter table document add column facets text[];
alter table feed add column facets text[];
update document set facets = array(select (c->>'type') || '=' || (c->>'status') from jsonb_array_elements(status->'conditions') c)
	where jsonb_typeof(status->'conditions') = 'array' and removed_at is null;
update feed f set facets = d.facets from document d where d.kind = f.kind and d.id = f.id and d.facets is not null;
create index feed_facets on feed using gin (facets) where facets is not null;
do $do$ begin
	execute format($f$create or replace function document_feed() returns trigger language plpgsql as $$ begin
		if tg_op = 'UPDATE' then
			update %1$I.feed set xid = new.xid, facets = new.facets where xid = old.xid and kind = old.kind and id = old.id;
			if not found then
				insert into %1$I.feed values (new.xid, new.kind, new.id, new.facets);
			end if;
		elsif tg_op = 'INSERT' then
			insert into %1$I.feed values (new.xid, new.kind, new.id, new.facets);
			if new.removed_at is null then
				insert into %1$I.tally values (new.kind, 1);
			end if;
		else
			delete from %1$I.feed where xid = old.xid and kind = old.kind and id = old.id;
			if old.removed_at is null then
				insert into %1$I.tally values (old.kind, -1);
			end if;
		end if;
		return null;
	end $$$f$, current_schema());
end $do$;
-- A transaction that changes a document twice has the same xid twice.
drop trigger document_changed on document;
create trigger document_changed after update of xid on document for each row
	when (old.xid is distinct from new.xid or old.facets is distinct from new.facets) execute function document_feed()`

// markSplitWire marks the wire forms that builds between splitWire and this step stored in two parts; see splitMark.
const markSplitWire = `update document set wire = decode('01', 'hex') || wire where head <> ''`

// statusDetail stores the part of a status that no search reads, and the spec in the history, as packed texts. A
// status whose other part is in the column detail has the member that splitStatus adds. A process of the release
// before reads only the searched part; the constraint refuses the statuses that it would store, without the member,
// beside a detail that is no longer theirs.
const statusDetail = `alter table document add column detail bytea;
alter table document alter column detail set storage main;
do $$ begin
	alter table document alter column detail set compression lz4;
exception when feature_not_supported then null;
end $$;
alter table document add constraint document_detail check (detail is null or status ? '+') not valid;
alter table history add column packed_spec bytea;
alter table history alter column packed_spec set storage external`

// inlineFacets keeps the facets, some 130 bytes, within the row. As they may be moved out, PostgreSQL moved them with
// spec and head, and each change of a condition's status wrote them there with an index entry of their own.
const inlineFacets = `alter table document alter column facets set storage main`

// auditRecords adds to the record of a change what an audit needs besides; null: the change is not audited. Readers of
// the audit feed find these records by the index, in which no other record is.
const auditRecords = `alter table history add column audit text;
create index history_audit on history (xid, seq) where audit is not null`

// sealedValues is where the sensitive values of documents are, encrypted; see seal.go. The table sealing has the place
// in the feed up to which the background looked for documents whose values are in clear.
const sealedValues = `alter table document add column sealed bytea, add column sealed_with text;
alter table document alter column sealed set storage external;
create index document_sealed on document (sealed_with, kind, id) where sealed_with is not null;
create table sealing (one boolean primary key default true check (one), xid xid8 not null default '0',
	kind text not null default '', id text not null default '')`

// shortObservations stores later times of observation beside the status and the wire form; see ObservationForm. A
// process of the release before knows no such column: the constraint refuses what it would write beside the times of
// another state. It is one constraint with that of statusDetail, because PostgreSQL parses each for each statement.
const shortObservations = `alter table document add column observed bytea;
alter table document alter column observed set storage plain;
alter table document drop constraint document_detail;
alter table document add constraint document_detail check ((detail is null or status ? '+')
	and (observed is null or substr(observed, 1, 8) = int8send(token))) not valid`

// migrations of the store's own schema, in order. Only ever add to the end: schema_version has the number of those that
// a database has had.
var migrations = []string{
	schema1,
	namesFree,
	quickCompression,
	historyOfKinds,
	narrowFeed,
	packedHistory,
	splitWire,
	tallies,
	searchFacets,
	markSplitWire,
	statusDetail,
	inlineFacets,
	auditRecords,
	sealedValues,
	shortObservations,
	insertedRows,
}

// SchemaVersion returns the version of the store's own schema that this program knows. Open refuses a newer schema.
func SchemaVersion() int { return len(migrations) }

// schemaLock is the advisory lock under which schemas change and incarnations begin.
const schemaLock = 0x61746f6c6c // "atoll"

// migratorLock is the advisory lock of the session that migrates: of several processes one tries at a time.
const migratorLock = schemaLock + 1

// A migration that waits for the lock of a table makes all later writers of the table wait behind it. So it waits for a
// short turn, rolls back, and tries again after migrationPause. The turn is longer than deadlock_timeout, one second by
// default, because only then PostgreSQL ends an autovacuum that holds the lock; writers wait for 1.5 s by default.
const (
	turnMargin     = 200 * time.Millisecond // a turn is deadlock_timeout and this margin
	migrationPause = 2 * time.Second
	migrationTries = 100
)

// withSchemaLock runs f in a transaction that holds schemaLock. It runs f again while another transaction holds the
// lock of a table that f needs, up to migrationTries times. It uses the connection's session, which the caller closes.
func (s *Store) withSchemaLock(ctx context.Context, conn *pgx.Conn, f func(tx pgx.Tx) error) error {
	var deadlockTimeout int64 // milliseconds
	if err := conn.QueryRow(ctx, `select setting::bigint from pg_settings where name = 'deadlock_timeout'`).Scan(
		&deadlockTimeout); err != nil {
		return err
	}
	turn := strconv.FormatInt(deadlockTimeout+turnMargin.Milliseconds(), 10)
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", int64(migratorLock)); err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(schemaLock)); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "select set_config('lock_timeout', $1, true)", turn); err != nil {
				return err
			}
			return f(tx)
		})
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pgErr.Code != lockNotAvailable || try == migrationTries {
			return err
		}
		s.log.Warn("the migration of the schema waits for a transaction that uses its tables", "error", err)
		if !pause.For(ctx, migrationPause) {
			return context.Cause(ctx)
		}
	}
}

// lockNotAvailable is PostgreSQL's error code for a statement that waited for a lock for lock_timeout.
const lockNotAvailable = "55P03"

// migrate brings the schema up to date, in one transaction: all of it or nothing.
func (s *Store) migrate(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if current, err := s.isCurrent(ctx, conn); err != nil || current {
		return classify(ctx, err)
	}
	err = s.withSchemaLock(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(
			ctx, `create table if not exists schema_version (part text primary key, version int not null)`); err != nil {
			return err
		}
		if err := migratePart(ctx, tx, "store", migrations); err != nil {
			return err
		}
		if err := migratePart(ctx, tx, "service", s.opts.Migrations); err != nil {
			return err
		}
		return s.makeIndexes(ctx, tx)
	})
	return classify(ctx, err)
}

// Migrate brings the side tables of one part of a service up to date. The part has a version of its own under its name,
// apart from Options.Migrations, so that several processes can use it. Steps have the rules of Options.Migrations. It
// only reads if there is nothing to do.
func (s *Store) Migrate(ctx context.Context, part string, steps []string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("migrating %s: %w", part, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var have int
	if err := conn.QueryRow(ctx, `select coalesce((select version from schema_version where part = $1), 0)`, part).Scan(
		&have); err == nil && have == len(steps) {
		return nil // it only read: a disk may be full
	}
	err = s.withSchemaLock(ctx, conn, func(tx pgx.Tx) error {
		return migratePart(ctx, tx, part, steps)
	})
	if err != nil {
		return fmt.Errorf("migrating %s: %w", part, classify(ctx, err))
	}
	return nil
}

// isCurrent reports that there is nothing to migrate. It only reads, so that Open works while the disk is full.
func (s *Store) isCurrent(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var exists bool
	if err := conn.QueryRow(ctx, `select to_regclass('schema_version') is not null`).Scan(&exists); err != nil ||
		!exists {
		return false, err
	}
	var store, service, indexes int
	var names []string
	for _, k := range s.opts.Kinds {
		for _, ix := range k.Indexes {
			names = append(names, indexName(k.Kind, ix))
		}
	}
	err := conn.QueryRow(ctx, `select coalesce((select version from schema_version where part = 'store'), 0),
		coalesce((select version from schema_version where part = 'service'), 0),
		(select count(*) from pg_index where indrelid = to_regclass('document') and (select relname from pg_class where oid = indexrelid) = any($1))`,
		names).Scan(&store, &service, &indexes)
	return err == nil && store == len(migrations) && service == len(s.opts.Migrations) && indexes == len(names), err
}

func indexName(k Kind, ix Index) string { return "document_" + string(k) + "_" + ix.Name }

func migratePart(ctx context.Context, tx pgx.Tx, part string, steps []string) error {
	var have int
	err := tx.QueryRow(ctx, `select coalesce((select version from schema_version where part = $1), 0)`, part).Scan(
		&have)
	if err != nil {
		return err
	}
	if have > len(steps) {
		return fmt.Errorf("%w: schema %s has version %d, this binary knows %d", ErrNewer, part, have, len(steps))
	}
	for i, step := range steps[have:] {
		if _, err := tx.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("schema %s, step %d: %w", part, have+i+1, err)
		}
	}
	if have == len(steps) {
		return nil
	}
	_, err = tx.Exec(
		ctx, `insert into schema_version values ($1, `+
			`$2) on conflict (part) do update set version = excluded.version`, part, len(steps))
	return err
}

func (s *Store) makeIndexes(ctx context.Context, tx pgx.Tx) error {
	for _, k := range s.opts.Kinds {
		for _, ix := range k.Indexes {
			name := pgx.Identifier{indexName(k.Kind, ix)}.Sanitize()
			stmt := fmt.Sprintf("create index if not exists %s on document using %s where kind = '%s'", name, ix.On,
				k.Kind)
			if ix.Live {
				stmt += " and removed_at is null"
			}
			if _, err := tx.Exec(ctx, stmt); err != nil {
				return fmt.Errorf("index %s of %s: %w", ix.Name, k.Kind, err)
			}
		}
	}
	return nil
}
