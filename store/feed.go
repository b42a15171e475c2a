package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// reader reads chunks of changed documents. A store has two readers, one for its followers and one
// for the replays of watches; each has connections of its own, so that it waits neither for writers
// nor for the other reader.
type reader struct {
	s    *Store
	pool *pgxpool.Pool
	// permits holds one token for each read that runs; its capacity bounds them. A read waits for a
	// free permit until its context ends. When permits is nil, a read waits for a connection of the
	// pool instead, as long as acquire does.
	permits   chan struct{}
	documents int // the most documents in a chunk
	bytes     int // a chunk ends with the document that exceeds this size
}

// maxChunkBytes is reader.bytes of the followers' reader. It bounds the memory that one read takes.
const maxChunkBytes = 8 << 20

// metaSQL is the table m with one row: the incarnation of the database, whether it began in this
// database and not in the one from which this was restored (see writtenHereSQL), the highest xid of
// the removed tombstones (horizon), the snapshot of this statement, and two positions of the WAL.
// The order of the columns matters. PostgreSQL reads the insert position after it has taken the
// snapshot, so the WAL of all rows that the snapshot sees lies before that position. It reads the
// flush position last.
const metaSQL = `m as materialized (select m.incarnation, ` + writtenHereSQL +
	` as written_here, m.horizon, pg_current_snapshot() as snap,
	(pg_current_wal_insert_lsn() - '0/0')::bigint as inserted,
	(pg_current_wal_flush_lsn() - '0/0')::bigint as flushed from store_meta m)`

const metaColumns = `m.incarnation, m.written_here, m.horizon, m.snap::text, m.inserted, m.flushed`

// changesSQL reads one chunk of the documents that changed between two snapshots: the rows of all
// transactions that the first snapshot does not see and the second one sees. Its two halves are the
// transactions that were in progress at the first snapshot, and the later ones. Each half reads a
// range of the index, so a transaction that stays open for hours does not make the query read more
// rows.
//
//	$1      identity of the session, for writtenHereSQL
//	$2-$5   the first snapshot: incarnation, xmin, xmax, transactions in progress
//	$6      kinds
//	$7, $8  the second snapshot and its xmax; null and maxXID: the snapshot of this statement
//	$9-$11  xid, kind and id of the last document of the chunk before
//	$12     limit
var changesSQL = `with ` + metaSQL + `
select ` + metaColumns + `, ` + columns + `, d.xid from m left join lateral (
	select * from (` + feedHalf(`f.xid = any($5::xid8[])`) + ` union all ` + feedHalf(`f.xid >= $4::xid8`) + `) d
	where m.written_here and m.incarnation = $2 and m.horizon < $3::xid8 and $4::xid8 <= pg_snapshot_xmax(m.snap)
	order by d.xid, d.kind, d.id limit $12
) d on true order by d.xid, d.kind, d.id`

// feedHalf returns the subquery of changesSQL for the feed rows that meet a condition, joined with
// their documents. The table feed has one row for each document. "offset 0" makes PostgreSQL look
// up each document by its key instead of scanning the documents.
func feedHalf(condition string) string {
	return `(select d.* from (select * from feed f
			where ` + condition + ` and f.xid < $8::xid8 and f.kind = any($6::text[])
			and (f.xid, f.kind, f.id) > ($9::xid8, $10::text, $11::text)
			and ($7::text is null or pg_visible_in_snapshot(f.xid, $7::text::pg_snapshot))
			order by f.xid, f.kind, f.id limit $12) f
		cross join lateral (select * from document d where d.kind = f.kind and d.id = f.id offset 0) d)`
}

// allDocumentsSQL reads one chunk of all documents, after ($3, $4).
var allDocumentsSQL = `with ` + metaSQL + `
select ` + metaColumns + `, ` + columns + `, d.xid from m left join lateral (
	select * from document d where d.kind = any($2::text[]) and (d.kind, d.id) > ($3::text, $4::text)
		and d.removed_at is null and m.written_here
	order by d.kind, d.id limit $5
) d on true order by d.kind, d.id`

// chunk is the result of one read of the feed.
type chunk struct {
	at                position // the snapshot of the statement
	writtenHere       bool     // false: the database was restored, and the chunk is empty
	horizon           uint64   // the highest xid of the removed tombstones
	inserted, flushed uint64   // positions in the WAL: see metaSQL
	docs              []Document
	xids              []uint64  // of docs
	more              bool      // another chunk may follow
	startedAt         time.Time // of the read, by the clock of this process
}

// maxXID is greater than any transaction's id.
const maxXID = uint64(1) << 62

// readChanges reads the next chunk, behind the document after, of the documents that changed
// between from and until; nil means the present. It returns errRestored when the database was
// restored, and ErrGone when the database cannot serve changes since from.
func (r *reader) readChanges(ctx context.Context, opened openedBefore, kinds []string, from position, until *position,
	after feedKey, limit int) (chunk, error) {
	var snapshot *string
	bound := maxXID
	if until != nil {
		snapshot, bound = &until.snapshot, until.xmax
	}
	c, err := r.readChunk(ctx, opened, changesSQL, limit, func(identity string) []any {
		return []any{identity, from.incarnation, from.xmin, from.xmax, from.xip, kinds, snapshot, bound, after.xid,
			after.kind, after.id, limit}
	})
	switch {
	case err != nil:
		return c, err
	case !c.writtenHere:
		return c, errRestored
	case c.at.incarnation != from.incarnation:
		return c, fmt.Errorf("%w: it is from another incarnation of the database", ErrGone)
	case c.horizon >= from.xmin:
		return c, fmt.Errorf("%w: deletions since then have been compacted", ErrGone)
	case from.xmax > c.at.xmax:
		return c, fmt.Errorf("%w: it lies in the future of the database", ErrGone)
	}
	return c, nil
}

// readAll reads the next chunk, behind the document after, of all documents. It returns errRestored
// when the database was restored.
func (r *reader) readAll(ctx context.Context, opened openedBefore, kinds []string, after feedKey, limit int) (
	chunk, error) {
	c, err := r.readChunk(ctx, opened, allDocumentsSQL, limit, func(identity string) []any {
		return []any{identity, kinds, after.kind, after.id, limit}
	})
	if err == nil && !c.writtenHere {
		err = errRestored
	}
	return c, err
}

// errRestored means that the database was restored after ensureIncarnation had run last.
// ensureIncarnation must run again before the next read.
var errRestored = errors.New("the database was restored")

// feedKey is the sort key of a changed document in a run. In a relist xid does not count.
type feedKey struct {
	xid      uint64
	kind, id string
}

// lastKey returns the key of the chunk's last document, or the zero key when the chunk is empty.
func (c chunk) lastKey() feedKey {
	if len(c.docs) == 0 {
		return feedKey{}
	}
	d := c.docs[len(c.docs)-1]
	return feedKey{c.xids[len(c.docs)-1], string(d.Kind), d.ID}
}

// openedBefore requires that the connection of a read was opened before this time; otherwise the
// read returns errReconnected. A connection that is open since then proves that the PostgreSQL
// server has not crashed since. The zero time requires nothing.
type openedBefore time.Time

// errReconnected means that the connection is younger than openedBefore requires: the server may
// have crashed since.
var errReconnected = errors.New("the connection was opened after the last read")

// runOn calls f once, with one of the reader's connections. It does not retry: after an
// interruption a follower must rewind first. When the connection breaks, runOn closes all
// connections of the reader and returns ErrUnavailable.
func (r *reader) runOn(ctx context.Context, opened openedBefore, f func(context.Context, *pgx.Conn) error) error {
	if r.permits != nil {
		select {
		case r.permits <- struct{}{}:
			defer func() { <-r.permits }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	conn, err := r.s.acquire(ctx, r.pool)
	if err != nil {
		return err
	}
	defer conn.release()
	if limit := time.Time(opened); !limit.IsZero() && sessionOf(conn.Conn()).openedAt.After(limit) {
		return errReconnected
	}
	bounded, cancel := context.WithTimeout(ctx, r.s.opts.StatementTimeout+time.Second)
	defer cancel()
	if err = f(bounded, conn.Conn()); err == nil {
		return nil
	}
	if isBroken(conn.Conn(), err) && ctx.Err() == nil {
		r.pool.Reset()
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return classify(ctx, err)
}

// flushSQL writes an empty record to the WAL, in a transaction. The commit of that transaction
// flushes the WAL to disk.
const flushSQL = `select pg_logical_emit_message(true, 'atoll', '')`

// flush makes PostgreSQL write all WAL so far to disk, and returns after that.
func (r *reader) flush(ctx context.Context, opened openedBefore) error {
	return r.runOn(ctx, opened, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, flushSQL)
		return err
	})
}

// undefinedTable and resultTypeChanged are PostgreSQL's error codes for a statement that finds no
// table store_meta, and for a prepared statement whose tables were made anew. A restore that is in
// progress causes both.
const (
	undefinedTable    = "42P01"
	resultTypeChanged = "0A000"
)

// readChunk runs a query that returns metaColumns and document columns, and returns its rows as a
// chunk. The query returns one row without a document when no document matches. args returns the
// query's arguments for the identity of the session. While a restore is in progress, readChunk
// returns ErrUnavailable.
func (r *reader) readChunk(ctx context.Context, opened openedBefore, sql string, limit int,
	args func(identity string) []any) (c chunk, err error) {
	err = r.runOn(ctx, opened, func(ctx context.Context, conn *pgx.Conn) error {
		c = chunk{startedAt: time.Now()}
		var incarnation, snapshot string
		rows, err := conn.Query(ctx, sql, args(sessionOf(conn).identity)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		hasMeta, size, returned := false, 0, 0
		for rows.Next() {
			hasMeta = true
			var found row
			var xid *uint64
			if size > r.bytes {
				c.more = true
				continue // the next chunk reads the rest again
			}
			meta := []any{&incarnation, &c.writtenHere, &c.horizon, &snapshot, &c.inserted, &c.flushed}
			if err := rows.Scan(append(meta, found.targets(&xid)...)...); err != nil {
				return err
			}
			if found.empty() {
				continue
			}
			returned++
			size += len(found.spec) + len(found.status) + len(found.detail) + len(found.head) + len(found.wire) +
				3*len(found.sealed) + len(found.observed) + 200
			doc, err := found.document(r.s)
			if err != nil {
				return err
			}
			c.docs = append(c.docs, doc)
			c.xids = append(c.xids, *xid)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if !hasMeta {
			return fmt.Errorf("%w: a restore is in progress", ErrUnavailable)
		}
		c.more = c.more || returned >= limit
		c.at, err = newPosition(incarnation, snapshot)
		return err
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok &&
		(pgErr.Code == undefinedTable || pgErr.Code == resultTypeChanged) {
		err = fmt.Errorf("%w: a restore is in progress: %w", ErrUnavailable, err)
	}
	return c, err
}
