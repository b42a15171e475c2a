package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// unansweredCommit is a transaction whose connection broke before the answer to its commit arrived.
type unansweredCommit struct {
	session session // that it ran in
	token   int64   // in the rows that it wrote
	xid     uint64  // 0: not known
	writes  []write
}

const (
	terminateSQL = `select pg_terminate_backend(pid) from pg_stat_get_activity($1) where backend_start = $2`

	documentTokenSQL    = `select version, token from document where kind = $1 and id = $2`
	recordTokenSQL      = `select token from history where kind = $1 and id = $2 and version = $3`
	transactionTokenSQL = `select exists (select from history where xid = $1 and token = $2)`
)

// resolve finds out whether the attempt was committed. It first ends the server's process of the broken connection,
// which may still run the transaction, or may not have begun it. If the transaction's id is known, resolve then asks
// pg_xact_status. The answer "aborted" is final. The answer "committed" may be about another transaction, because a
// server uses ids again after a crash; then, and without an id, the token in the rows decides. resolve returns
// ErrUnknownOutcome when it cannot decide within ResolveTimeout.
func (s *Store) resolve(a unansweredCommit) (committed bool, err error) {
	// Not the caller's context, which may have ended: the outcome is needed for the log, too.
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ResolveTimeout)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		committed, err := s.tryResolve(ctx, a)
		if err == nil {
			return committed, nil
		}
		if errors.Is(err, ErrUnknownOutcome) {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		case <-time.After(pause):
		}
	}
}

var errUnderWay = errors.New("the server has not ended it yet")

// resolvesAtOnce bounds the connections, besides those of the pool, on which resolve asks. The callers of a whole group
// of writes may ask at once, and PostgreSQL refuses connections above its limit to everybody.
const resolvesAtOnce = 4

func (s *Store) tryResolve(ctx context.Context, a unansweredCommit) (committed bool, err error) {
	select {
	case s.resolving <- struct{}{}:
		defer func() { <-s.resolving }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var signalled bool
	switch err := conn.QueryRow(ctx, terminateSQL, int32(a.session.pid), a.session.started).Scan(&signalled); {
	case err == nil:
		return false, errUnderWay
	case !errors.Is(err, pgx.ErrNoRows):
		return false, err
	}
	if a.xid != 0 {
		var status *string
		err := conn.QueryRow(ctx, `select pg_xact_status($1)`, a.xid).Scan(&status)
		pgErr, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case ok && pgErr.Code == "22023": // the id lies in the future: the server crashed and lost the transaction
			return false, nil
		case err != nil:
			return false, err
		case status != nil && *status == "aborted":
			return false, nil
		case status != nil && *status == "in progress":
			return false, errUnderWay
		}
		var recorded bool
		if err := conn.QueryRow(ctx, transactionTokenSQL, a.xid, a.token).Scan(&recorded); err != nil {
			return false, err
		}
		if recorded {
			return true, nil
		}
	}
	for _, w := range a.writes {
		switch decided, committed, err := resolveByToken(ctx, conn, w, a.token); {
		case err != nil:
			return false, err
		case decided:
			return committed, nil
		}
	}
	return false, fmt.Errorf("%w: its documents have been written again since", ErrUnknownOutcome)
}

// resolveByToken decides by one document that the transaction wrote. decided is false if the document does not show the
// outcome.
func resolveByToken(ctx context.Context, conn *pgx.Conn, w write, token int64) (decided, committed bool, err error) {
	var version, holder int64
	err = conn.QueryRow(ctx, documentTokenSQL, string(w.kind), w.id).Scan(&version, &holder)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return true, false, nil // not written: Compact deletes only old tombstones
	case err != nil:
		return false, false, err
	case version < w.version:
		return true, false, nil
	case holder == token:
		return true, true, nil
	case version == w.version && (w.isSilent || !w.history):
		return true, false, nil // another write made this version
	}
	// A later observation of the same version may have replaced the document's token; the record keeps the version's.
	if !w.history {
		return false, false, nil
	}
	err = conn.QueryRow(ctx, recordTokenSQL, string(w.kind), w.id, w.version).Scan(&holder)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, false, nil
	case err != nil:
		return false, false, err
	}
	return true, holder == token, nil
}
