package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// attempt is a transaction whose connection broke before the answer to its commit arrived.
type attempt struct {
	session session // that it ran in
	token   int64   // that its rows carry
	xid     uint64  // 0: not known
	writes  []write
}

const (
	fenceSQL = `select pg_terminate_backend(pid) from pg_stat_get_activity($1) where backend_start = $2`

	docTokenSQL = `select version, token from document where kind = $1 and id = $2`
	logTokenSQL = `select token from history where kind = $1 and id = $2 and version = $3`
	anyTokenSQL = `select exists (select from history where xid = $1 and token = $2)`
)

// resolve finds out whether the attempt was committed. It first makes sure that nothing of it is still under way: the
// server's side of the broken connection may not have noticed yet, and may even have to begin. Then pg_xact_status
// answers, if the transaction's id is known. "Aborted" is the truth. "Committed" may be about another transaction,
// because a server that crashed uses again the ids of transactions that left no trace; so that, and an unknown id, are
// decided by the token in the rows. ErrUnknownOutcome when it cannot be decided within ResolveTimeout.
func (s *Store) resolve(a attempt) (made bool, err error) {
	// Not the caller's context: what is asked here is what to tell the caller, or the log, if it has gone away.
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ResolveTimeout)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		made, err := s.tryResolve(ctx, a)
		if err == nil {
			return made, nil
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

func (s *Store) tryResolve(ctx context.Context, a attempt) (made bool, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var signalled bool
	switch err := conn.QueryRow(ctx, fenceSQL, int32(a.session.pid), a.session.started).Scan(&signalled); {
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
		case ok && pgErr.Code == "22023": // in the future: the server crashed and knows nothing of it
			return false, nil
		case err != nil:
			return false, err
		case status != nil && *status == "aborted":
			return false, nil
		case status != nil && *status == "in progress":
			return false, errUnderWay
		}
		var recorded bool
		if err := conn.QueryRow(ctx, anyTokenSQL, a.xid, a.token).Scan(&recorded); err != nil {
			return false, err
		}
		if recorded {
			return true, nil
		}
	}
	for _, w := range a.writes {
		switch decided, made, err := byToken(ctx, conn, w, a.token); {
		case err != nil:
			return false, err
		case decided:
			return made, nil
		}
	}
	return false, fmt.Errorf("%w: its documents have been written again since", ErrUnknownOutcome)
}

// byToken decides by one document of the transaction, if it can.
func byToken(ctx context.Context, conn *pgx.Conn, w write, token int64) (decided, made bool, err error) {
	var version, holder int64
	err = conn.QueryRow(ctx, docTokenSQL, string(w.kind), w.id).Scan(&version, &holder)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return true, false, nil // never written: only an old tombstone is ever taken away
	case err != nil:
		return false, false, err
	case version < w.version:
		return true, false, nil
	case holder == token:
		return true, true, nil
	case version == w.version && (w.quiet || !w.history):
		return true, false, nil // another one made this version
	}
	// The document's token may be that of a later observation of the same version; the history has the version's own.
	if !w.history {
		return false, false, nil
	}
	err = conn.QueryRow(ctx, logTokenSQL, string(w.kind), w.id, w.version).Scan(&holder)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, false, nil
	case err != nil:
		return false, false, err
	}
	return true, holder == token, nil
}
