package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// The size of a batch of a Stream. A Stream holds at most two batches in memory.
const (
	streamBytes = 1 << 20
	streamRows  = 500
)

// Extent is the size of a list.
type Extent struct {
	Total int // of documents that match, in all pages
	Size  int // of documents in this page
}

// Stream is List for pages of any size: its memory does not grow with the page. It calls begin once
// with the extent of the page, and then batch with the next documents in the order of the query,
// until it has sent all of the page, which is from one snapshot. One goroutine calls begin and
// batch.
//
// Outcomes:
//
//   - nil: batch got the whole page.
//   - an error of begin or batch, unchanged: Stream stopped there.
//   - ErrInvalid: the query has After, or a kind that is not one of the store's. begin was not
//     called.
//   - ErrUnavailable: no connection was free (Options.QueueTimeout), or too many long streams are in progress.
//   - another error of the store. If it comes after begin, the caller has a part of the page.
//
// Stream reads the next batch while batch runs, and releases its connection before the last call of
// batch. So only pages of several batches hold a connection while batch is slow, and these hold at
// most half of the connections.
func (s *Store) Stream(ctx context.Context, q Query, begin func(Extent) error, batch func([]Document) error) error {
	var callbackErr error
	keep := func(err error) error {
		if err != nil {
			callbackErr = err
		}
		return err
	}
	err := s.stream(ctx, q, func(x Extent) error { return keep(begin(x)) }, func(d []Document) error {
		return keep(batch(d))
	})
	if callbackErr != nil {
		return callbackErr
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
		} // until readParts has returned
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

// part is one message of the goroutine that reads a page: first the extent, then documents, and
// last perhaps an error. One field is set.
type part struct {
	extent    *Extent
	documents []Document
	err       error
}

// readParts reads a page and sends its parts, until its end, an error, or until stop is closed.
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
				conn.release()
			}
		}
		r := &pageReader{s: s, conn: conn.Conn(), query: q, send: send, release: release, permitted: permitted}
		err = r.run(ctx)
		if !released && !conn.Conn().IsClosed() {
			s.runUncancelled(ctx, func(ctx context.Context) error {
				_, err := conn.Conn().Exec(ctx, "rollback")
				return err
			})
		}
		lost := !released && isBroken(conn.Conn(), err)
		release()
		permitted = r.permitted
		switch {
		case err == nil:
			return
		case errors.Is(err, errNoPermit):
			if permitted = s.acquirePermit(ctx, stop); permitted {
				continue
			}
			err = fmt.Errorf("%w: too many long lists are read at once", ErrUnavailable)
		case lost:
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

// errNoPermit means that a page of several batches needs a permit to keep its connection, and none
// was free.
var errNoPermit = errors.New("no permit")

// acquirePermit waits for a permit, at most AcquireTimeout, and reports whether it got one. The
// caller must hold no connection, for which the streams with permits may wait.
func (s *Store) acquirePermit(ctx context.Context, stop <-chan struct{}) bool {
	timeout := time.NewTimer(s.opts.AcquireTimeout)
	defer timeout.Stop()
	select {
	case s.streams <- struct{}{}:
		return true
	case <-stop:
	case <-ctx.Done():
	case <-timeout.C:
	}
	return false
}

// runUncancelled runs a statement that the end of ctx does not cancel, so that a client that leaves does
// not cost a connection. A time-out bounds the statement.
func (s *Store) runUncancelled(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := s.uncancelled(ctx)
	defer cancel()
	return f(ctx)
}

// pageReader reads one page on one connection.
type pageReader struct {
	s       *Store
	conn    *pgx.Conn
	query   Query
	send    func(part) bool
	release func()
	begun   bool // a part was sent

	permitted bool // the reader may keep the connection while the caller handles the parts
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
	err := r.s.runUncancelled(ctx, func(ctx context.Context) (err error) {
		if _, err := r.conn.Exec(ctx, "begin isolation level repeatable read read only"); err != nil {
			return err
		}
		page, extent.Total, err = r.findPage(ctx)
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
			return errNoPermit
		}
	}
	for first := true; first || len(page) > 0; first = false {
		var docs []Document
		if len(page) > 0 {
			batch := page[:batchLength(page)]
			page = page[len(batch):]
			if err := r.s.runUncancelled(ctx, func(ctx context.Context) (err error) {
				docs, err = r.readDocuments(ctx, batch)
				return err
			}); err != nil {
				return err
			}
		}
		if len(page) == 0 {
			if err := r.s.runUncancelled(ctx, func(ctx context.Context) error {
				_, err := r.conn.Exec(ctx, "commit")
				return err
			}); err != nil {
				return err
			}
			r.release()
		}
		// readParts can try again when a read fails before the first part was sent.
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

// findPage reads the ids and sizes of the page's documents, in their order, and the number of all
// documents that match.
func (r *pageReader) findPage(ctx context.Context) (page []pageEntry, total int, err error) {
	args := append([]any{}, r.query.Where.Args...)
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	where := r.query.whereSQL(arg)
	counted := len(args)
	size := "octet_length(d.head) + octet_length(d.wire) + coalesce(octet_length(d.sealed), 0) * 2"
	if !r.query.WireOnly {
		// Not pg_column_size, which is compressed. A packed text has a sixth to a tenth of its bytes.
		size += " + octet_length(d.spec::text) + octet_length(d.status::text) + coalesce(octet_length(d.detail), 0) * 8"
	}
	sql := "select d.id, " + size + " from document d where " + where + " order by " + orderSQL(r.query.keys()) +
		" limit " + arg(r.query.Limit+1) + " offset " + arg(r.query.Offset)
	// Each statement is described and not prepared, as in List (Query.execMode).
	described := func(args []any) []any { return append([]any{pgx.QueryExecModeCacheDescribe}, args...) }
	rows, err := r.conn.Query(ctx, sql, described(args)...)
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
	if len(page) <= r.query.Limit && (len(page) > 0 || r.query.Offset == 0) {
		return page, r.query.Offset + len(page), nil // the page reaches the end
	}
	page = page[:min(len(page), r.query.Limit)]
	err = r.conn.QueryRow(ctx, "select count(*) from document d where "+where, described(args[:counted])...).Scan(
		&total)
	return page, total, err
}

// readDocuments reads the documents of a batch, in its order.
func (r *pageReader) readDocuments(ctx context.Context, batch []pageEntry) ([]Document, error) {
	ids := make([]string, len(batch))
	for i, f := range batch {
		ids[i] = f.id
	}
	rows, err := r.conn.Query(ctx, `select `+r.query.listed()+` from unnest($2::text[]) with ordinality u(id, at)
		join document d on d.kind = $1 and d.id = u.id order by u.at`, string(r.query.Kind), ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	docs := make([]Document, 0, len(batch))
	var d documentRow
	targets := d.listTargets(r.query)
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		doc, err := d.document(r.s)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(docs) != len(batch) {
		return nil, errors.New("a document of the page is missing in its own snapshot")
	}
	return docs, nil
}
