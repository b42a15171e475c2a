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

// reader reads the feed for followers or for watches, on connections that nobody else uses.
type reader struct {
	s    *Store
	pool *pgxpool.Pool
	// turns holds a token for each read that runs; nil: a read waits for a connection of the pool, at most
	// AcquireTimeout.
	turns     chan struct{}
	documents int // at most in a chunk
	bytes     int // in a chunk; the document that reaches this number is its last
}

// maxChunkBytes bounds the documents that one read of a follower keeps in memory.
const maxChunkBytes = 8 << 20

// metaSQL reads the facts about the moment of a statement's snapshot. It reads the insert position of the WAL after the
// snapshot, and before the flush position.
const metaSQL = `m as materialized (select m.incarnation, ` + oursSQL +
	` as ours, m.horizon, pg_current_snapshot() as snap,
	(pg_current_wal_insert_lsn() - '0/0')::bigint as inserted, (pg_current_wal_flush_lsn() - '0/0')::bigint as flushed from store_meta m)`

const metaColumns = `m.incarnation, m.ours, m.horizon, m.snap::text, m.inserted, m.flushed`

// changesSQL reads one chunk of the documents that changed between two snapshots: rows of transactions that the first
// ($3 xmin, $4 xmax, $5 those in progress) does not see and the second does ($7, $8 its xmax; null in the first
// chunk: the statement's own). The two halves are the transactions that were in progress and the later ones; each is
// a range of the index, so that a transaction that stays open for long costs nothing. $9-$11 is where the last chunk
// ended.
var changesSQL = `with ` + metaSQL + `
select ` + metaColumns + `, ` + columns + `, d.xid from m left join lateral (
	select * from (` + feedHalf(`f.xid = any($5::xid8[])`) + ` union all ` + feedHalf(`f.xid >= $4::xid8`) + `) d
	where m.ours and m.incarnation = $2 and m.horizon < $3::xid8 and $4::xid8 <= pg_snapshot_xmax(m.snap)
	order by d.xid, d.kind, d.id limit $12
) d on true order by d.xid, d.kind, d.id`

// feedHalf finds documents by the feed, which has one row for each. "offset 0" has each of them looked up by its key.
func feedHalf(which string) string {
	return `(select d.* from (select * from feed f where ` + which + ` and f.xid < $8::xid8 and f.kind = any($6::text[])
			and (f.xid, f.kind, f.id) > ($9::xid8, $10::text, $11::text)
			and ($7::text is null or pg_visible_in_snapshot(f.xid, $7::text::pg_snapshot))
			order by f.xid, f.kind, f.id limit $12) f
		cross join lateral (select * from document d where d.kind = f.kind and d.id = f.id offset 0) d)`
}

// everythingSQL reads one chunk of all documents, after ($3, $4).
var everythingSQL = `with ` + metaSQL + `
select ` + metaColumns + `, ` + columns + `, d.xid from m left join lateral (
	select * from document d where d.kind = any($2::text[]) and (d.kind, d.id) > ($3::text, $4::text) and d.removed_at is null and m.ours
	order by d.kind, d.id limit $5
) d on true order by d.kind, d.id`

// chunk is the result of one read of the feed.
type chunk struct {
	at                position // the statement's snapshot
	ours              bool
	horizon           uint64
	inserted, flushed uint64 // positions in the WAL
	docs              []Document
	xids              []uint64 // of docs
	more              bool     // there may be more after the last one
	began             time.Time
}

const maxXID = uint64(1) << 62

// changes reads a chunk of the documents that changed from one position to another (nil: to now), after a document.
func (r *reader) changes(ctx context.Context, since unbrokenSince, kinds []string, from position, until *position,
	after place, limit int) (chunk, error) {
	var snapshot *string
	bound := maxXID
	if until != nil {
		snapshot, bound = &until.snapshot, until.xmax
	}
	c, err := r.readChunk(ctx, since, changesSQL, limit, func(identity string) []any {
		return []any{identity, from.incarnation, from.xmin, from.xmax, from.xip, kinds, snapshot, bound, after.xid,
			after.kind, after.id, limit}
	})
	switch {
	case err != nil:
		return c, err
	case !c.ours:
		return c, errNotOurs
	case c.at.incarnation != from.incarnation:
		return c, fmt.Errorf("%w: it is from another incarnation of the database", ErrGone)
	case c.horizon >= from.xmin:
		return c, fmt.Errorf("%w: deletions since then have been compacted", ErrGone)
	case from.xmax > c.at.xmax:
		return c, fmt.Errorf("%w: it lies in the future of the database", ErrGone)
	}
	return c, nil
}

// everything reads a chunk of all documents, after a document.
func (r *reader) everything(ctx context.Context, since unbrokenSince, kinds []string, after place, limit int) (
	chunk, error) {
	c, err := r.readChunk(ctx, since, everythingSQL, limit, func(identity string) []any {
		return []any{identity, kinds, after.kind, after.id, limit}
	})
	if err == nil && !c.ours {
		err = errNotOurs
	}
	return c, err
}

// errNotOurs: the database was restored; adopt has to be called.
var errNotOurs = errors.New("the database was restored")

// place is the place of a document in the order of a run.
type place struct {
	xid      uint64
	kind, id string
}

func (c chunk) last() place {
	if len(c.docs) == 0 {
		return place{}
	}
	d := c.docs[len(c.docs)-1]
	return place{c.xids[len(c.docs)-1], string(d.Kind), d.ID}
}

// unbrokenSince is a time: the read fails with errReconnected if its connection is younger, because the server may have
// crashed since that time. Zero: any connection will do.
type unbrokenSince time.Time

// errReconnected: the connection is younger than unbrokenSince, so that the server may have crashed since.
var errReconnected = errors.New("the connection is a new one")

// runOn runs f on one of the reader's connections, once. It does not retry, because a follower has to rewind after an
// interruption.
func (r *reader) runOn(ctx context.Context, t unbrokenSince, f func(context.Context, *pgx.Conn) error) error {
	if r.turns != nil {
		select {
		case r.turns <- struct{}{}:
			defer func() { <-r.turns }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	conn, err := r.s.acquire(ctx, r.pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	if since := time.Time(t); !since.IsZero() && sessionOf(conn.Conn()).since.After(since) {
		return errReconnected
	}
	bounded, cancel := context.WithTimeout(ctx, r.s.opts.StatementTimeout+time.Second)
	defer cancel()
	if err = f(bounded, conn.Conn()); err == nil {
		return nil
	}
	if broken(conn.Conn(), err) && ctx.Err() == nil {
		r.pool.Reset()
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return classify(ctx, err)
}

const flushSQL = `select pg_logical_emit_message(true, 'atoll', '')`

// flush puts all WAL written so far on disk.
func (r *reader) flush(ctx context.Context, t unbrokenSince) error {
	return r.runOn(ctx, t, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, flushSQL)
		return err
	})
}

func (r *reader) readChunk(ctx context.Context, t unbrokenSince, sql string, limit int,
	args func(identity string) []any) (c chunk, err error) {
	err = r.runOn(ctx, t, func(ctx context.Context, conn *pgx.Conn) error {
		c = chunk{began: time.Now()}
		var incarnation, snapshot string
		rows, err := conn.Query(ctx, sql, args(sessionOf(conn).identity)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		answered, size, returned := false, 0, 0
		for rows.Next() {
			answered = true
			var found row
			var xid *uint64
			if size > r.bytes {
				c.more = true
				continue // the next chunk reads the rest again
			}
			meta := []any{&incarnation, &c.ours, &c.horizon, &snapshot, &c.inserted, &c.flushed}
			if err := rows.Scan(append(meta, found.targets(&xid)...)...); err != nil {
				return err
			}
			if found.empty() {
				continue
			}
			returned++
			size += len(found.spec) + len(found.status) + len(found.head) + len(found.wire) + 200
			c.docs = append(c.docs, found.document())
			c.xids = append(c.xids, *xid)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if !answered {
			return fmt.Errorf("%w: a restore is under way", ErrUnavailable)
		}
		c.more = c.more || returned >= limit
		c.at, err = newPosition(incarnation, snapshot)
		return err
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == "42P01" || pgErr.Code == "0A000") {
		err = fmt.Errorf("%w: a restore is under way: %w", ErrUnavailable, err)
	}
	return c, err
}
