package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// channel is the NOTIFY channel; the payload is "<sender> <kind>,<kind>".
const channel = "atoll_store"

// doorbell tells other processes that something was committed. It rings from a connection of its own after the commits,
// at most every FeedInterval, because a NOTIFY inside the writing transaction would hold a server-wide lock until that
// commit is on disk. A ring may be lost: followers poll, too.
type doorbell struct {
	s      *Store
	sender string
	rung   chan struct{}

	mu    sync.Mutex
	kinds map[Kind]struct{}
}

func newDoorbell(s *Store) *doorbell {
	return &doorbell{s: s, sender: fmt.Sprintf("%016x", rand.Uint64()), rung: make(chan struct{}, 1),
		kinds: map[Kind]struct{}{}}
}

// committed is called after each commit.
func (s *Store) committed(kinds ...Kind) {
	if len(kinds) == 0 {
		return
	}
	if s.opts.Hooks.LocalWake == nil || s.opts.Hooks.LocalWake() {
		s.hub.wake(kinds...)
	}
	s.bell.mu.Lock()
	for _, k := range kinds {
		s.bell.kinds[k] = struct{}{}
	}
	s.bell.mu.Unlock()
	select {
	case s.bell.rung <- struct{}{}:
	default:
	}
}

func (b *doorbell) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			closeQuietly(conn)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			// A command that wrote and ends at once is heard, too.
			conn = b.answer(ctx, conn)
			return
		case <-b.rung:
		}
		conn = b.answer(ctx, conn)
		pause(ctx, b.s.opts.FeedInterval)
	}
}

// answer rings for what was committed since the last ring, if anything was.
func (b *doorbell) answer(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	b.mu.Lock()
	var kinds []string
	for k := range b.kinds {
		kinds = append(kinds, string(k))
	}
	clear(b.kinds)
	b.mu.Unlock()
	if len(kinds) == 0 || b.s.opts.Hooks.BeforeRing != nil && !b.s.opts.Hooks.BeforeRing() {
		return conn
	}
	return b.ring(context.WithoutCancel(ctx), conn, b.sender+" "+strings.Join(kinds, ","))
}

// ring sends one notification and returns the connection to use for the next, or nil.
func (b *doorbell) ring(ctx context.Context, conn *pgx.Conn, payload string) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, b.s.opts.AcquireTimeout)
	defer cancel()
	if conn == nil {
		var err error
		if conn, err = b.s.connect(ctx); err != nil {
			return nil // followers poll
		}
	}
	if _, err := conn.Exec(ctx, `select pg_notify('`+channel+`', $1)`, payload); err != nil {
		closeQuietly(conn)
		return nil
	}
	return conn
}

func closeQuietly(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
}

// pause waits for d; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
