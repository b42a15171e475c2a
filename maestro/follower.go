package maestro

import (
	"context"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// runLease makes one of the servers that share a database the one that
// delivers. The lease is a lock of a database session: it is free at once when
// its holder dies.
func (s *Server) runLease(ctx context.Context) error {
	h := fnv.New64a()
	h.Write([]byte("maestro delivery " + s.opts.SourceID))
	key := int64(h.Sum64())
	for {
		err := s.leadOnce(ctx, key)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "delivery was interrupted", slog.Any("error", err))
		}
		if !sleep(ctx, leaseInterval) {
			return nil
		}
	}
}

// leadOnce waits for the lease and delivers while it holds it.
func (s *Server) leadOnce(ctx context.Context, key int64) error {
	dial, cancel := context.WithTimeout(ctx, 2*time.Second)
	conn, err := pgx.Connect(dial, s.opts.DSN)
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(bye)
	}()
	// A holder whose host vanished does not close its session; the database
	// finds out within 3 s, not within hours.
	var set string
	if err := query(ctx, conn, `select set_config('tcp_keepalives_idle', '1', false) || set_config('tcp_keepalives_interval', '1', false) ||
			set_config('tcp_keepalives_count', '2', false) || set_config('tcp_user_timeout', '3000', false)`, &set); err != nil {
		return err
	}
	for {
		var held bool
		if err := query(ctx, conn, `select pg_try_advisory_lock($1)`, &held, key); err != nil {
			return err
		}
		if held {
			break
		}
		if !sleep(ctx, leaseInterval) {
			return nil
		}
	}
	leading, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.lead(leading) }()
	defer func() { stop(); <-done }()
	ping := time.NewTicker(time.Second)
	defer ping.Stop()
	for {
		select {
		case err := <-done:
			done <- nil
			return err
		case <-ping.C:
			var one int
			if err := query(ctx, conn, `select 1`, &one); err != nil {
				return err
			}
		}
	}
}

func query(ctx context.Context, conn *pgx.Conn, sql string, result any, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return conn.QueryRow(ctx, sql, args...).Scan(result)
}
