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

// session describes the server's process behind a connection.
type session struct {
	pid      uint32
	started  time.Time // distinguishes the process from a later one with the same pid
	openedAt time.Time // by this process's clock; a crash of the server would have ended the connection
	identity string    // of server, timeline and database; see incarnation.go
}

const sessionKey = "atoll.session"

const identifySQL = `
select pg_backend_pid(), (select backend_start from pg_stat_get_activity(pg_backend_pid())),
	(select system_identifier from pg_control_system())::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
	|| '/' || (select oid from pg_database where datname = current_database())`

// identifyWithoutControlSQL is for sessions that may not call pg_control_system: the server's
// identity is then unknown. A restore from a dump is still recognised, by the copied row of
// store_meta.
const identifyWithoutControlSQL = `
select pg_backend_pid(), (select backend_start from pg_stat_get_activity(pg_backend_pid())),
	'-/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' ||
	(select oid from pg_database where datname = current_database())`

// insufficientPrivilege and noFunction are PostgreSQL's codes for a call of pg_control_system that the server
// refuses.
const (
	insufficientPrivilege = "42501"
	undefinedFunction     = "42883"
)

// identify reads the session of a new connection and stores it in the connection, for sessionOf.
func identify(ctx context.Context, conn *pgx.Conn) error {
	s := session{openedAt: time.Now()}
	err := conn.QueryRow(ctx, identifySQL, pgx.QueryExecModeSimpleProtocol).Scan(&s.pid, &s.started, &s.identity)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == insufficientPrivilege ||
		pgErr.Code == undefinedFunction) {
		err = conn.QueryRow(ctx, identifyWithoutControlSQL, pgx.QueryExecModeSimpleProtocol).Scan(&s.pid, &s.started,
			&s.identity)
	}
	if err != nil {
		return fmt.Errorf("identifying the session: %w", err)
	}
	conn.PgConn().CustomData()[sessionKey] = s
	return nil
}

// sessionOf returns the session that identify stored.
func sessionOf(conn *pgx.Conn) session {
	s, _ := conn.PgConn().CustomData()[sessionKey].(session)
	return s
}

// connect makes a connection outside the pools, without statement timeouts, for the store's own
// work.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.single)
	if err != nil {
		if ctx.Err() == nil && sentinelOf(err) == nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, classify(ctx, err)
	}
	if err := identify(ctx, conn); err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, classify(ctx, err)
	}
	return conn, nil
}

// acquire returns a connection of the pool. While all connections are in use and the database answers the statements of
// others, it waits for QueueTimeout. The error is ErrUnavailable after that, and after AcquireTimeout without an answer
// of the database (decision 127). The caller gives the connection back with release.
func (s *Store) acquire(ctx context.Context, pool *pgxpool.Pool) (l pooledConn, err error) {
	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	timer := s.limitWait(giveUp)
	defer timer.Stop()
	l = pooledConn{s: s, inBackground: pool == s.pool && isInBackground(ctx)}
	if l.inBackground {
		select {
		case s.background <- struct{}{}:
		case <-waiting.Done():
			l.inBackground = false
		}
	}
	if l.pooled, err = s.acquireWithin(ctx, waiting, pool); err != nil && l.inBackground {
		<-s.background
	}
	return l, err
}

// acquireWithin returns a connection of the pool, unless waiting ends before.
func (s *Store) acquireWithin(ctx, waiting context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for {
		answered := s.answered.Load()
		conn, err := pool.Acquire(waiting)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case waiting.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(waiting))
		case isTimeout(err) && s.answered.Load() != answered:
			continue // a new connection took longer than AcquireTimeout, and the database answers on the others
		case sentinelOf(err) == nil:
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, classify(ctx, err)
	}
}

// limitWait calls giveUp with the reason when a wait for a connection has become too long. The caller stops the timer.
func (s *Store) limitWait(giveUp context.CancelCauseFunc) *time.Timer {
	begun, answered := time.Now(), s.answered.Load()
	var timer *time.Timer
	check := func() {
		now, left := s.answered.Load(), s.opts.QueueTimeout-time.Since(begun)
		switch {
		case now == answered:
			giveUp(fmt.Errorf("no connection within %s, and no answer of the database", s.opts.AcquireTimeout))
		case left <= 0:
			giveUp(fmt.Errorf("all connections are in use: none was free within %s", s.opts.QueueTimeout))
		default:
			answered = now
			timer.Reset(min(s.opts.AcquireTimeout, left))
		}
	}
	timer = time.AfterFunc(time.Hour, check)
	timer.Reset(s.opts.AcquireTimeout) // timer is assigned before check may use it
	return timer
}

// isTimeout reports whether an error of the driver is the end of a limit of time.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}

// pooledConn is a connection of a pool that a caller has acquired and must release.
type pooledConn struct {
	s            *Store
	pooled       *pgxpool.Conn
	inBackground bool // it counts in the share of the background
}

// Conn returns the driver's connection.
func (l pooledConn) Conn() *pgx.Conn { return l.pooled.Conn() }

// release gives a connection back. An open connection has answered its last statement, because a limit of time closes
// the connection.
func (l pooledConn) release() {
	if !l.Conn().IsClosed() {
		l.s.answered.Add(1)
	}
	l.pooled.Release()
	if l.inBackground {
		<-l.s.background
	}
}

type backgroundKey struct{}

// InBackground returns a context for work that nobody waits for. Calls with such contexts use at most half of the
// connections of a store at once, so a process that has much such work still answers requests.
func InBackground(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

func isInBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// read runs f, which must only read, on a connection of the pool. When the connection is broken,
// read runs f again on a new one, at most twice: after a restart of the server all connections of
// the pool are broken.
func (s *Store) read(ctx context.Context, pool *pgxpool.Pool, f func(context.Context, *pgx.Conn) error) error {
	for attempt := 0; ; attempt++ {
		conn, err := s.acquire(ctx, pool)
		if err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout+time.Second)
		err = f(bounded, conn.Conn())
		cancel()
		lost := isBroken(conn.Conn(), err)
		conn.release()
		if err == nil {
			return nil
		}
		if lost && attempt < 2 && ctx.Err() == nil {
			pool.Reset()
			continue
		}
		if lost && ctx.Err() == nil && sentinelOf(err) == nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return classify(ctx, err)
	}
}

// uncancelled returns the context for a write: the cancellation of ctx does not end it, only a
// time-out that is longer than the statement's own. A cancelled statement would cost a connection
// and leave its outcome unknown.
func (s *Store) uncancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.opts.StatementTimeout+time.Second)
}
