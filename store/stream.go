package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds of what a Stream holds in memory at a time: two batches.
const (
	streamBytes = 1 << 20
	streamRows  = 500
)

// Extent is the size of a list.
type Extent struct {
	Total int // of documents that match, in all pages
	Size  int // of documents in this page
}

// Stream is List for pages of any size: it calls begin once with the page's extent, and then batch with one part of
// the page after the other, so that its memory does not grow with the page. The whole page is from one snapshot. A
// Query with After is ErrInvalid.
//
// Stream reads the next part while batch runs, and gives its connection back before the last call of batch. So only
// pages of several parts hold a connection while batch is slow. Such pages hold at most half of the connections; one
// more gets ErrUnavailable. After an error that follows begin the caller has a part of the page. An error of begin or
// batch ends the stream, and Stream returns it unchanged.
func (s *Store) Stream(ctx context.Context, q Query, begin func(Extent) error, batch func([]Document) error) error {
	// Errors of the callbacks are returned unchanged.
	var own error
	keep := func(err error) error {
		if err != nil {
			own = err
		}
		return err
	}
	err := s.stream(ctx, q, func(x Extent) error { return keep(begin(x)) }, func(d []Document) error {
		return keep(batch(d))
	})
	if own != nil {
		return own
	}
	if err != nil {
		return fmt.Errorf("listing %s: %w", q.Kind, err)
	}
	return nil
}

func (s *Store) stream(ctx context.Context, q Query, begin func(Extent) error, batch func([]Document) error) error {
	if _, err := s.kind(q.Kind); err != nil {
		return err
	}
	if q.After != "" {
		return fmt.Errorf("%w: a stream has no page token", ErrInvalid)
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	parts := make(chan part)
	stop := make(chan struct{})
	go func() {
		defer close(parts)
		s.readParts(ctx, q, parts, stop)
	}()
	defer func() {
		close(stop)
		for range parts {
		} // until the reader has ended
	}()
	for p := range parts {
		if p.err != nil {
			return p.err
		}
		if p.extent != nil {
			if err := begin(*p.extent); err != nil {
				return err
			}
			continue
		}
		if err := batch(p.documents); err != nil {
			return err
		}
	}
	return nil
}

// part is one message of a stream's reader: first the extent, then documents, and an error only as the last.
type part struct {
	extent    *Extent
	documents []Document
	err       error
}

// readParts reads a page and sends its parts, until its end, an error, or stop.
func (s *Store) readParts(ctx context.Context, q Query, parts chan<- part, stop <-chan struct{}) {
	send := func(p part) bool {
		select {
		case parts <- p:
			return true
		case <-stop:
			return false
		}
	}
	permitted := false
	defer func() {
		if permitted {
			<-s.streams
		}
	}()
	for attempt := 0; ; attempt++ {
		conn, err := s.acquire(ctx, s.pool)
		if err != nil {
			send(part{err: err})
			return
		}
		released := false
		release := func() {
			if !released {
				released = true
				conn.Release()
			}
		}
		r := &pageReader{s: s, c: conn.Conn(), q: q, send: send, release: release, permitted: permitted}
		err = r.run(ctx)
		if !released && !conn.Conn().IsClosed() {
			s.bounded(ctx, func(ctx context.Context) error { _, err := conn.Conn().Exec(ctx, "rollback"); return err })
		}
		dead := !released && broken(conn.Conn(), err)
		release()
		permitted = r.permitted
		switch {
		case err == nil:
			return
		case errors.Is(err, errCrowded):
			if permitted = s.acquirePermit(ctx, stop); permitted {
				continue
			}
			err = fmt.Errorf("%w: too many long lists are read at once", ErrUnavailable)
		case dead:
			s.pool.Reset()
			if !r.begun && attempt < 2 && ctx.Err() == nil {
				continue
			}
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		default:
			err = classify(ctx, err)
		}
		send(part{err: err})
		return
	}
}

// errCrowded: a page of several parts needs a permit to hold its connection, and none was free.
var errCrowded = errors.New("no permit")

// acquirePermit waits for a permit, at most AcquireTimeout, and holds no connection meanwhile.
func (s *Store) acquirePermit(ctx context.Context, stop <-chan struct{}) bool {
	patience := time.NewTimer(s.opts.AcquireTimeout)
	defer patience.Stop()
	select {
	case s.streams <- struct{}{}:
		return true
	case <-stop:
	case <-ctx.Done():
	case <-patience.C:
	}
	return false
}

// bounded runs a statement under its own time-outs: the end of a client's request does not break the connection.
func (s *Store) bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := s.uncancelled(ctx)
	defer cancel()
	return f(ctx)
}

// pageReader reads one page on one connection.
type pageReader struct {
	s       *Store
	c       *pgx.Conn
	q       Query
	send    func(part) bool
	release func()
	begun   bool // a part was sent

	permitted bool // it may hold the connection while the caller handles the parts
}

// pageEntry is the id and the size of a document of the page.
type pageEntry struct {
	id   string
	size int
}

// run reads the page in a transaction of its own and sends its parts.
func (r *pageReader) run(ctx context.Context) error {
	var page []pageEntry
	extent := Extent{}
	err := r.s.bounded(ctx, func(ctx context.Context) (err error) {
		if _, err := r.c.Exec(ctx, "begin isolation level repeatable read read only"); err != nil {
			return err
		}
		page, extent.Total, err = r.find(ctx)
		return err
	})
	if err != nil {
		return err
	}
	extent.Size = len(page)
	if batchLength(page) < len(page) && !r.permitted {
		select {
		case r.s.streams <- struct{}{}:
			r.permitted = true
		default:
			return errCrowded
		}
	}
	for first := true; first || len(page) > 0; first = false {
		var docs []Document
		if len(page) > 0 {
			some := page[:batchLength(page)]
			page = page[len(some):]
			if err := r.s.bounded(ctx, func(ctx context.Context) (err error) {
				docs, err = r.read(ctx, some)
				return err
			}); err != nil {
				return err
			}
		}
		if len(page) == 0 {
			if err := r.s.bounded(ctx, func(ctx context.Context) error {
				_, err := r.c.Exec(ctx, "commit")
				return err
			}); err != nil {
				return err
			}
			r.release()
		}
		// A read that fails before the first part was sent can be tried again.
		if r.begun = true; first && !r.send(part{extent: &extent}) || docs != nil && !r.send(part{documents: docs}) {
			return nil
		}
	}
	return nil
}

// batchLength returns how many of the next documents make a batch.
func batchLength(page []pageEntry) int {
	n, size := 0, 0
	for n < len(page) && n < streamRows && (n == 0 || size+page[n].size <= streamBytes) {
		size += page[n].size
		n++
	}
	return n
}

// find reads the ids and sizes of the page's documents, in their order, and the number of all documents that match.
func (r *pageReader) find(ctx context.Context) (page []pageEntry, total int, err error) {
	args := append([]any{}, r.q.Where.Args...)
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	where := r.q.where(arg)
	counted := len(args)
	size := "octet_length(d.head) + octet_length(d.wire)"
	if !r.q.WireOnly {
		size += " + octet_length(d.spec::text) + octet_length(d.status::text)" // not pg_column_size: that is compressed
	}
	sql := "select d.id, " + size + " from document d where " + where + " order by " + orderSQL(r.q.keys()) +
		" limit " + arg(r.q.Limit+1) + " offset " + arg(r.q.Offset)
	// Described each time, not prepared, as in List.
	described := func(args []any) []any { return append([]any{pgx.QueryExecModeCacheDescribe}, args...) }
	rows, err := r.c.Query(ctx, sql, described(args)...)
	if err != nil {
		return nil, 0, err
	}
	var f pageEntry
	if _, err := pgx.ForEachRow(rows, []any{&f.id, &f.size}, func() error {
		page = append(page, f)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	if len(page) <= r.q.Limit && (len(page) > 0 || r.q.Offset == 0) {
		return page, r.q.Offset + len(page), nil // the page reaches the end
	}
	page = page[:min(len(page), r.q.Limit)]
	err = r.c.QueryRow(ctx, "select count(*) from document d where "+where, described(args[:counted])...).Scan(&total)
	return page, total, err
}

// read reads some documents of the page.
func (r *pageReader) read(ctx context.Context, some []pageEntry) ([]Document, error) {
	ids := make([]string, len(some))
	for i, f := range some {
		ids[i] = f.id
	}
	rows, err := r.c.Query(ctx, `select `+r.q.columns()+` from unnest($2::text[]) with ordinality u(id, at)
		join document d on d.kind = $1 and d.id = u.id order by u.at`, string(r.q.Kind), ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	docs := make([]Document, 0, len(some))
	for rows.Next() {
		var d row
		if err := rows.Scan(d.targets()...); err != nil {
			return nil, err
		}
		docs = append(docs, d.document())
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(docs) != len(some) {
		return nil, errors.New("a snapshot does not have what it had")
	}
	return docs, nil
}
