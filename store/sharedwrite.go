package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// sharedWrite is a write of one document that may share a message with those of other callers, and its outcome.
type sharedWrite struct {
	write
	token int64

	hit       bool
	err       error
	isRefused bool    // PostgreSQL refused a statement of the group: the caller sends its write alone
	isBroken  bool    // the connection broke with err, so that the outcome is open
	session   session // in which it was sent
}

// maxSharedBytes bounds the size of a write that shares a message: a larger one would delay the others.
const maxSharedBytes = 64 << 10

// sendWrite sends one write as autocommit does, together with those of other callers: one message, one transaction
// and one flush of PostgreSQL's log for all. hit is false if the document has changed, and for a short form or a
// write in a group also if its row is locked: the caller reads the document again. Two writes of one document in a
// group are as two callers that write at once.
func (s *Store) sendWrite(ctx context.Context, w write, token int64) (hit bool, err error) {
	shared := &sharedWrite{write: w, token: token}
	switch {
	case isInBackground(ctx):
		return s.autocommit(ctx, w, token)
	case w.observed != nil:
		err = s.observations.share(ctx, shared, s.sendObservations)
	case w.shared != nil && w.size() <= maxSharedBytes:
		err = s.writes.share(ctx, shared, s.sendWrites)
	default:
		return s.autocommit(ctx, w, token)
	}
	switch {
	case err != nil:
		return false, err
	case shared.isRefused:
		return s.autocommit(ctx, w, token)
	case shared.isBroken:
		return s.settle(w, token, shared.session, shared.err)
	}
	return shared.hit, shared.err
}

// size returns about how many bytes the large arguments of the write have.
func (w write) size() (n int) {
	for _, a := range w.args {
		if b, ok := a.([]byte); ok {
			n += len(b)
		}
	}
	return n
}

// sendWrites sends the writes of a group in one message, which PostgreSQL runs as one transaction, and sets the outcome
// of each. It notifies the followers once.
func (s *Store) sendWrites(ctx context.Context, group []*sharedWrite) {
	if len(group) == 1 {
		w := group[0]
		w.hit, w.err = s.autocommit(ctx, w.write, w.token)
		return
	}
	s.sendGroup(ctx, group, func(ctx context.Context, conn *pgx.Conn) ([]int64, error) {
		return sendStatements(ctx, conn, group)
	})
	var kinds []Kind
	for _, w := range group {
		if w.hit && !w.isSilent {
			kinds = append(kinds, w.kind)
		}
	}
	s.notifyCommit(kinds...)
}

// sendGroup calls send, which returns the tokens of the writes that were done, and sets the outcome of each write of a
// group. After an error of PostgreSQL each caller sends its write alone, because one write may be the cause. When the
// connection breaks, each caller reads from the database whether its write was committed.
func (s *Store) sendGroup(ctx context.Context, group []*sharedWrite, send func(context.Context, *pgx.Conn) ([]int64,
	error)) {
	conn, err := s.acquire(ctx, s.pool)
	if err != nil {
		for _, w := range group {
			w.err = err
		}
		return
	}
	defer conn.release()
	sendCtx, cancel := s.uncancelled(ctx)
	defer cancel()
	tokens, err := send(sendCtx, conn.Conn())
	switch {
	case err == nil:
		written := make(map[int64]bool, len(tokens))
		for _, token := range tokens {
			written[token] = true
		}
		for _, w := range group {
			w.hit = written[w.token]
		}
	case isBroken(conn.Conn(), err):
		s.pool.Reset()
		for _, w := range group {
			w.err, w.isBroken, w.session = err, true, sessionOf(conn.Conn())
		}
	case len(group) == 1:
		group[0].err = classify(context.WithoutCancel(ctx), err)
	default:
		for _, w := range group {
			w.isRefused = true
		}
	}
}

// sendStatements sends one statement for each form of write in the group, in one message, and returns the tokens of the
// written ones.
func sendStatements(ctx context.Context, conn *pgx.Conn, group []*sharedWrite) (tokens []int64, err error) {
	var batch pgx.Batch
	for _, st := range []*sharedStatement{sharedInsert, sharedUpdate} { // updates hold locks, so they come last
		if args := st.arguments(group); args != nil {
			batch.Queue(st.sql, args...)
		}
	}
	if len(batch.QueuedQueries) == 1 {
		return collectTokens(conn.Query(ctx, batch.QueuedQueries[0].SQL, batch.QueuedQueries[0].Arguments...))
	}
	results := conn.SendBatch(ctx, &batch)
	for range batch.QueuedQueries {
		var some []int64
		if some, err = collectTokens(results.Query()); err != nil {
			break
		}
		tokens = append(tokens, some...)
	}
	if closed := results.Close(); err == nil {
		err = closed // PostgreSQL commits at the end of the message
	}
	return tokens, err
}

// collectTokens returns the tokens that a statement returns.
func collectTokens(rows pgx.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
