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

// The errors on which callers decide; test with errors.Is. After each of them but ErrUnknownOutcome
// the call has written nothing.
var (
	ErrNotFound = errors.New("no such document")
	ErrExists   = errors.New("document exists")  // always an *ExistsError, which names the document
	ErrStale    = errors.New("version is stale") // always a *StaleError, which has the latest version
	// ErrInvalid means that PostgreSQL cannot store the document or that an argument is malformed:
	// malformed JSON, a NUL character (\u0000) or half a surrogate pair in a string, a number
	// beyond what jsonb holds, a change of an immutable field. The same call fails again.
	ErrInvalid = errors.New("document cannot be stored")
	// ErrGone means that the cursor is from another incarnation of the database, or older than the
	// latest tombstone that Compact has removed. The caller lists again.
	ErrGone = errors.New("cursor is gone")
	// ErrUnavailable means that the database cannot be reached, is starting or stopping, or is too
	// busy. The same call may succeed later.
	ErrUnavailable = errors.New("database is unavailable")
	// ErrTimeout means that a statement ran longer than Options.StatementTimeout.
	ErrTimeout = errors.New("statement took too long")
	// ErrFull means that the disk is full. Reads succeed.
	ErrFull = errors.New("database is full")
	// ErrConflict means that other transactions changed the same rows in each attempt. The same
	// call may succeed later.
	ErrConflict = errors.New("transaction conflict")
	// ErrUnknownOutcome means that the connection broke during the commit, and that the store could
	// not find out within Options.ResolveTimeout whether PostgreSQL committed the write.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
	// ErrNewer means that a newer binary has migrated the schema of the database.
	ErrNewer = errors.New("database was written by a newer version")
)

// StaleError is an ErrStale: the caller's version is not the latest.
type StaleError struct {
	Kind    Kind
	ID      string
	Asked   int64 // the caller's version
	Latest  int64
	Current Document // in the latest version
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%s %s: version %d is stale, the latest is %d", e.Kind, e.ID, e.Asked, e.Latest)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// ExistsError is an ErrExists.
type ExistsError struct {
	Kind   Kind
	ID     string // of the document that exists; "" if ByName and not known
	ByName bool   // the documents have the same name and scope, and not the same id
}

func (e *ExistsError) Error() string {
	if e.ByName {
		return fmt.Sprintf("%s: a document of that name exists: %s", e.Kind, e.ID)
	}
	return fmt.Sprintf("%s %s exists", e.Kind, e.ID)
}

// Is reports whether target is ErrExists.
func (e *ExistsError) Is(target error) bool { return target == ErrExists }

// isBroken reports whether the error closed the connection, so that the server may have executed the
// statement or not. broken does not use pgconn.SafeToRetry, which is true for a simple query whose
// answer was lost ("conn closed").
func isBroken(conn *pgx.Conn, err error) bool {
	return err != nil && conn.IsClosed()
}

// classify wraps an error of the driver in the exported error that describes it. When ctx has
// ended, it wraps the error in the cause of ctx instead. Other errors, and errors that it has
// classified before, stay unchanged; nil stays nil.
func classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	if isClassified(err) {
		return err
	}
	if sentinel := sentinelOf(err); sentinel != nil {
		return fmt.Errorf("%w: %w", sentinel, err)
	}
	return err
}

// isClassified reports whether an error is one of the exported errors already.
func isClassified(err error) bool {
	for _, known := range []error{ErrNotFound, ErrExists, ErrStale, ErrInvalid, ErrGone, ErrUnavailable, ErrTimeout,
		ErrFull, ErrConflict, ErrUnknownOutcome} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// sentinelOf returns the exported error that describes an error of the driver or of PostgreSQL, or
// nil. The codes are those of PostgreSQL's appendix "Error Codes".
func sentinelOf(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		_, connecting := errors.AsType[*pgconn.ConnectError](err)
		_, network := errors.AsType[net.Error](err)
		if connecting || network || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) ||
			isLostConnection(err) {
			return ErrUnavailable
		}
		return nil
	}
	switch pgErr.Code {
	case "22P02", "22P05", "22021", "22003", "22008", "22007", // malformed text, characters, numbers, times
		"54000", "54001", // too large for jsonb or an index, too deep
		"22030", "22032": // malformed JSON
		return ErrInvalid
	case "53100", "25006": // disk full; read only, which internal/postgres.Guard sets before the disk is full
		return ErrFull
	case "57014": // statement time-out
		return ErrTimeout
	case "40001", "40P01": // serialization failure, deadlock
		return ErrConflict
	case lockNotAvailable, "25P03", // a lock, or an idle transaction, took too long
		"57P01", "57P02", "57P03", "57P05", // server stops, crashed, starts; session idle for too long
		"3D000", "42501": // no such database, no rights: a restore that is in progress has not made them yet
		return ErrUnavailable
	}
	switch pgErr.Code[:2] {
	case "08", "53": // connection exceptions, insufficient resources
		return ErrUnavailable
	}
	return nil
}

// isLostConnection recognises errors of the driver that mean that the connection ended, by their
// text: they have no type.
func isLostConnection(err error) bool {
	text := err.Error()
	for _, part := range []string{"unexpected EOF", "conn closed", "closed pool", "broken pipe", "connection reset",
		"EOF"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
