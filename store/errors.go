package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// What callers decide on. Test with errors.Is.
var (
	ErrNotFound = errors.New("no such document")
	ErrExists   = errors.New("document exists")  // an *ExistsError says which
	ErrStale    = errors.New("version is stale") // a *StaleError has the latest version
	// ErrInvalid: the document cannot be stored as it is: malformed JSON, a NUL character (\u0000) or half a surrogate
	// pair in a string, a number beyond what jsonb holds, a change of an immutable field.
	ErrInvalid = errors.New("document cannot be stored")
	// ErrGone: the cursor is from another incarnation of the database, or older than the oldest tombstone that is
	// still kept. List again.
	ErrGone = errors.New("cursor is gone")
	// ErrUnavailable: the database cannot be reached, is starting or stopping, or is too busy. Nothing was written.
	ErrUnavailable = errors.New("database is unavailable")
	// ErrTimeout: a statement ran into StatementTimeout. Nothing was written.
	ErrTimeout = errors.New("statement took too long")
	// ErrFull: the disk is full. Nothing was written; reads go on.
	ErrFull = errors.New("database is full")
	// ErrConflict: transactions got in each other's way again and again. Nothing was written; try again.
	ErrConflict = errors.New("transaction conflict")
	// ErrUnknownOutcome: the connection broke while the write was being committed, and it could not
	// be found out whether it was.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
	// ErrNewer: the database's schema is newer than this binary.
	ErrNewer = errors.New("database was written by a newer version")
)

// StaleError is an ErrStale.
type StaleError struct {
	Kind    Kind
	ID      string
	Asked   int64
	Latest  int64
	Current Document // the document as it is now
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%s %s: version %d is stale, the latest is %d", e.Kind, e.ID, e.Asked, e.Latest)
}

func (e *StaleError) Is(target error) bool { return target == ErrStale }

// ExistsError is an ErrExists.
type ExistsError struct {
	Kind   Kind
	ID     string // of the document that exists
	ByName bool   // it has the same name in the same scope; otherwise it has the same id
}

func (e *ExistsError) Error() string {
	if e.ByName {
		return fmt.Sprintf("%s: a document of that name exists: %s", e.Kind, e.ID)
	}
	return fmt.Sprintf("%s %s exists", e.Kind, e.ID)
}

func (e *ExistsError) Is(target error) bool { return target == ErrExists }

// broken says that the connection is gone, so that a statement which was under way may or may not
// have been done. Nothing is made of pgconn.SafeToRetry: a simple query whose answer was lost ends
// with "conn closed", which claims to be safe.
func broken(conn *pgx.Conn, err error) bool {
	return err != nil && conn.IsClosed()
}

// classify wraps a driver's error in the sentinel that callers decide on. Errors that it does not know, and the
// caller's own context errors, stay as they are.
func classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	if already(err) {
		return err
	}
	if sentinel := sentinelOf(err); sentinel != nil {
		return fmt.Errorf("%w: %w", sentinel, err)
	}
	return err
}

func already(err error) bool {
	for _, known := range []error{ErrNotFound, ErrExists, ErrStale, ErrInvalid, ErrGone, ErrUnavailable, ErrTimeout,
		ErrFull, ErrConflict, ErrUnknownOutcome} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

func sentinelOf(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		_, connecting := errors.AsType[*pgconn.ConnectError](err)
		_, network := errors.AsType[net.Error](err)
		if connecting || network || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) || lost(err) {
			return ErrUnavailable
		}
		return nil
	}
	switch pgErr.Code {
	case "22P02", "22P05", "22021", "22003", "22008", "22007", // malformed text, characters, numbers, times
		"54000", "54001", // too large for jsonb or an index, too deep
		"22030", "22032": // malformed JSON
		return ErrInvalid
	case "53100", "25006": // or the server is read only because its disk is nearly full (internal/postgres, Guard)
		return ErrFull
	case "57014":
		return ErrTimeout
	case "40001", "40P01":
		return ErrConflict
	case "55P03", "25P03", // a lock, or an idle transaction, took too long
		"57P01", "57P02", "57P03", "57P05", // going down, crashed, starting up, idle
		"3D000", "42501": // the database or our rights are being re-made by a restore
		return ErrUnavailable
	}
	switch pgErr.Code[:2] {
	case "08", "53": // connection exceptions, out of some resource
		return ErrUnavailable
	}
	return nil
}

// lost recognises the driver's errors of a connection that ended, which have no type of their own.
func lost(err error) bool {
	text := err.Error()
	for _, part := range []string{"unexpected EOF", "conn closed", "closed pool", "broken pipe", "connection reset",
		"EOF"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
