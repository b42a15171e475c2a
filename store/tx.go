package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a transaction over several documents and the service's side tables. One goroutine may use it at a time.
type Tx struct {
	s        *Store
	conn     *pgx.Conn
	token    int64
	xid      uint64 // 0 before the first write
	writes   []write
	kinds    []Kind // of the changed documents
	usedSQL  bool   // the service ran statements of its own
	begun    bool   // "begin" was sent, with the first statement
	answered bool   // the server answered a statement
}

const conflictRetries = 5

// Tx runs f in one transaction and commits all of its writes, or none. An error of f rolls the transaction back, and Tx
// returns it unchanged. Tx calls f again after a conflict with another transaction (deadlock, serialization), so f must
// have no effect outside of tx. f must not use the store itself, and must be shorter than IdleInTxTimeout.
//
// When Tx returns nil the transaction is durable. ErrUnknownOutcome: the connection broke during the commit, and Tx
// could not find out whether it was committed. With every other error nothing was written.
func (s *Store) Tx(ctx context.Context, f func(tx *Tx) error) error {
	for try := 0; ; try++ {
		err := s.tryTx(ctx, f)
		retry := errors.Is(err, ErrConflict) && try < conflictRetries || errors.Is(err, errNotWritten) && try < maxResends
		if !retry || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Store) tryTx(ctx context.Context, f func(tx *Tx) error) error {
	conn, err := s.acquire(ctx, s.pool)
	if err != nil {
		return err
	}
	defer conn.release()
	c := conn.Conn()
	tx := &Tx{s: s, conn: c, token: newToken()}
	finished := false
	defer func() { // an error, or a panic in f
		if tx.begun && !finished && !c.IsClosed() {
			rctx, cancel := s.uncancelled(ctx)
			defer cancel()
			c.Exec(rctx, "rollback")
		}
	}()
	if err := f(tx); err != nil {
		if isBroken(c, err) && ctx.Err() == nil {
			s.pool.Reset()
			if !tx.answered {
				return fmt.Errorf("%w: %w", errNotWritten, err) // the connection was broken before the transaction began
			}
			return fmt.Errorf("%w: %w", ErrUnavailable, err) // COMMIT was not sent, so nothing was written
		}
		return err
	}
	if !tx.begun {
		return nil
	}
	cctx, cancel := s.uncancelled(ctx)
	defer cancel()
	if tx.usedSQL && tx.xid == 0 {
		if err := c.QueryRow(cctx, `select coalesce(pg_current_xact_id_if_assigned(), '0')`).Scan(
			&tx.xid); err != nil && isBroken(c, err) {
			s.pool.Reset()
			return fmt.Errorf("%w: %w", errNotWritten, err)
		}
	}
	tag, err := c.Exec(cctx, "commit")
	finished = true
	if err == nil && tag.String() == "ROLLBACK" {
		return errors.New("committing: an earlier statement of the transaction failed")
	}
	if err != nil {
		if !isBroken(c, err) {
			return classify(context.WithoutCancel(ctx), err)
		}
		s.pool.Reset()
		if tx.xid == 0 {
			return fmt.Errorf("%w: %w", errNotWritten, err) // there was nothing to commit
		}
		written, rerr := s.resolve(unansweredCommit{session: sessionOf(c), token: tx.token, xid: tx.xid, writes: tx.writes})
		if rerr != nil {
			return fmt.Errorf("%w: %w", rerr, err)
		}
		if !written {
			return fmt.Errorf("%w: %w", errNotWritten, err)
		}
	}
	s.notifyCommit(tx.kinds...)
	return nil
}

// QueryRow reads one row of the service's side tables. Scan returns the driver's errors.
func (tx *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx.usedSQL = true
	return statements{tx}.QueryRow(ctx, sql, args...)
}

// statements runs statements in the transaction. "begin" goes out with the first one, in one round trip.
type statements struct{ tx *Tx }

// QueryRow implements querier.
func (s statements) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.tx.begun {
		return s.tx.conn.QueryRow(ctx, sql, args...)
	}
	return &firstRow{s.tx, s.tx.begin(ctx, sql, args)}
}

// begin sends "begin" and the first statement of the transaction.
func (tx *Tx) begin(ctx context.Context, sql string, args []any) pgx.BatchResults {
	tx.begun = true
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(sql, args...)
	return tx.conn.SendBatch(ctx, b)
}

// firstRow is the row of a transaction's first statement.
type firstRow struct {
	tx      *Tx
	results pgx.BatchResults
}

// Scan implements pgx.Row.
func (r *firstRow) Scan(targets ...any) error {
	_, err := r.results.Exec()
	if err == nil {
		err = r.results.QueryRow().Scan(targets...)
	}
	if closed := r.results.Close(); err == nil {
		err = closed
	}
	r.tx.answered = err == nil || !isBroken(r.tx.conn, err)
	return err
}

// Get is as Store.Get, and sees what the transaction wrote. It does not lock.
func (tx *Tx) Get(ctx context.Context, kind Kind, id string) (Document, error) {
	doc, found, err := tx.s.readOne(ctx, statements{tx}, getSQL, string(kind), id)
	if err == nil && (!found || doc.Removed) {
		err = ErrNotFound
	}
	if err != nil {
		return Document{}, fmt.Errorf("getting %s %s: %w", kind, id, classify(ctx, err))
	}
	return doc, nil
}

// GetForUpdate is Get, and locks the document against other writers until the transaction ends.
func (tx *Tx) GetForUpdate(ctx context.Context, kind Kind, id string) (Document, error) {
	doc, found, err := tx.s.readOne(ctx, statements{tx}, lockSQL, string(kind), id)
	if err == nil && (!found || doc.Removed) {
		err = ErrNotFound
	}
	if err != nil {
		return Document{}, fmt.Errorf("getting %s %s: %w", kind, id, classify(ctx, err))
	}
	return doc, nil
}

// GetByName is as Store.GetByName, and sees what the transaction wrote. It does not lock.
func (tx *Tx) GetByName(ctx context.Context, kind Kind, scope, name string) (Document, error) {
	doc, found, err := tx.s.readOne(ctx, statements{tx}, byNameSQL, string(kind), scope, name)
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return Document{}, fmt.Errorf("getting %s %q in %q: %w", kind, name, scope, classify(ctx, err))
	}
	return doc, nil
}

// Create is as Store.Create. After ErrExists the transaction can go on, unless the document that has the name was
// created by another transaction in the same moment.
func (tx *Tx) Create(ctx context.Context, d Document) (Document, error) {
	created, err := tx.create(ctx, d)
	if err != nil {
		return Document{}, fmt.Errorf("creating %s %s: %w", d.Kind, d.ID, classify(ctx, err))
	}
	return created, nil
}

func (tx *Tx) create(ctx context.Context, d Document) (Document, error) {
	kind, err := tx.s.kind(d.Kind)
	if err != nil {
		return d, err
	}
	var tombstone *Document
	for range 10 {
		next, err := kind.completeNew(d, tombstone)
		if err != nil {
			return d, err
		}
		w, err := kind.composeCreation(ctx, next, tombstone, tx.token)
		if err != nil {
			return d, err
		}
		hit, err := tx.send(ctx, w)
		if isNameTaken(err) {
			return d, &ExistsError{Kind: d.Kind, ByName: true}
		}
		if err != nil {
			return d, err
		}
		if hit {
			tx.s.countChange()
			next.token = tx.token
			return next, nil
		}
		if tombstone, err = tx.s.findConflict(ctx, statements{tx}, d); err != nil {
			return d, err
		}
	}
	return d, ErrConflict
}

// Update is as Store.Update; it locks the document until the transaction ends.
func (tx *Tx) Update(ctx context.Context, kind Kind, id string, ifVersion int64, change func(*Document) error) (
	Document, bool, error) {
	return tx.update(ctx, kind, id, ifVersion, modify, change)
}

// Remove is as Store.Remove.
func (tx *Tx) Remove(ctx context.Context, kind Kind, id string, ifVersion int64) error {
	_, _, err := tx.update(ctx, kind, id, ifVersion, remove, nil)
	return err
}

func (tx *Tx) update(ctx context.Context, kind Kind, id string, ifVersion int64, goal goal,
	change func(*Document) error) (Document, bool, error) {
	fail := func(err error) (Document, bool, error) {
		return Document{}, false, fmt.Errorf("updating %s %s: %w", kind, id, classify(ctx, err))
	}
	spec, err := tx.s.kind(kind)
	if err != nil {
		return fail(err)
	}
	cur, found, err := tx.s.readOne(ctx, statements{tx}, lockSQL, string(kind), id)
	if err != nil {
		return fail(err)
	}
	if !found {
		return fail(ErrNotFound)
	}
	if err := checkVersion(cur, ifVersion); err != nil {
		return fail(err)
	}
	next, w, changed, err := spec.change(ctx, cur, tx.token, goal, change)
	if err != nil {
		return fail(err)
	}
	if w.sql == "" {
		return cur, false, nil
	}
	hit, err := tx.send(ctx, w)
	if err != nil {
		return fail(err)
	}
	if !hit {
		return fail(ErrConflict) // impossible: the row is locked
	}
	if goal == remove {
		tx.s.countChange()
	}
	return next, changed, nil
}

func (tx *Tx) send(ctx context.Context, w write) (hit bool, err error) {
	hit, xid, err := send(ctx, statements{tx}, w)
	if err == nil && hit {
		tx.xid = xid
		tx.writes = append(tx.writes, w)
		if !w.isSilent {
			tx.kinds = append(tx.kinds, w.kind)
		}
	}
	return hit, err
}

const recordSQL = `insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id,
		note, token, audit)
	values ($1, $2, $3, $4, $5, 0, 0, $6, $7, $8, $9::jsonb, $10, $11::text) returning pg_current_xact_id()`

// Record adds a record to the history that is not a change of a document: a decision, a refusal, an operation. The
// actor is the context's. Note is JSON, or nil.
func (tx *Tx) Record(ctx context.Context, action string, kind Kind, id, scope string, note json.RawMessage) error {
	a := ActorFrom(ctx)
	audit, err := (&KindSpec{}).encodeAuditDetail(a, nil, Document{})
	if err != nil {
		return fmt.Errorf("recording %s: %w", action, err)
	}
	err = statements{tx}.QueryRow(ctx, recordSQL, timeAfter(time.Time{}), action, string(kind), id, scope,
		a.Principal, a.Account, a.RequestID, jsonArgument(note), tx.token, audit).Scan(&tx.xid)
	if err != nil {
		return fmt.Errorf("recording %s: %w", action, classify(ctx, err))
	}
	return nil
}

// Exec runs a statement on the service's side tables. It returns the driver's errors, or the store's where classify
// knows them.
func (tx *Tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	tx.usedSQL = true
	if tx.begun {
		tag, err = tx.conn.Exec(ctx, sql, args...)
		return tag, classify(ctx, err)
	}
	results := tx.begin(ctx, sql, args)
	if _, err = results.Exec(); err == nil {
		tag, err = results.Exec()
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	tx.answered = err == nil || !isBroken(tx.conn, err)
	return tag, classify(ctx, err)
}

// Query reads rows of the service's side tables. It returns errors as Exec does.
func (tx *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx.usedSQL = true
	return tx.query(ctx, sql, args...)
}

func (tx *Tx) query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if tx.begun {
		rows, err := tx.conn.Query(ctx, sql, args...)
		return rows, classify(ctx, err)
	}
	results := tx.begin(ctx, sql, args)
	_, err := results.Exec()
	var rows pgx.Rows
	if err == nil {
		tx.answered = true
		rows, err = results.Query()
	}
	if err != nil {
		results.Close()
		return nil, classify(ctx, err)
	}
	return &firstRows{rows, results}, nil
}

// firstRows are the rows of a transaction's first statement. The connection is free for the next statement once the
// rows are closed. Next closes them after the last row.
type firstRows struct {
	pgx.Rows
	results pgx.BatchResults
}

// Next implements pgx.Rows.
func (r *firstRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close implements pgx.Rows.
func (r *firstRows) Close() {
	r.Rows.Close()
	r.results.Close()
}
