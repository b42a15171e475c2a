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

// notifier notifies other processes of commits. It sends NOTIFY on a connection of its own after the commits, at most
// every FeedInterval, because a NOTIFY inside the writing transaction would hold a server-wide lock until that
// commit is on disk. A notification may be lost: followers poll, too.
type notifier struct {
	s      *Store
	sender string
	due    chan struct{}

	mu    sync.Mutex
	kinds map[Kind]struct{}
}

func newNotifier(s *Store) *notifier {
	return &notifier{s: s, sender: fmt.Sprintf("%016x", rand.Uint64()), due: make(chan struct{}, 1),
		kinds: map[Kind]struct{}{}}
}

// notifyCommit wakes the followers of this process after a commit, and has other processes notified.
func (s *Store) notifyCommit(kinds ...Kind) {
	if len(kinds) == 0 {
		return
	}
	if s.opts.Hooks.LocalWake == nil || s.opts.Hooks.LocalWake() {
		s.hub.wake(kinds...)
	}
	s.notifier.mu.Lock()
	for _, k := range kinds {
		s.notifier.kinds[k] = struct{}{}
	}
	s.notifier.mu.Unlock()
	select {
	case s.notifier.due <- struct{}{}:
	default:
	}
}

func (b *notifier) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			closeQuietly(conn)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			// A command that wrote and ends at once notifies, too.
			conn = b.notifyPending(ctx, conn)
			return
		case <-b.due:
		}
		conn = b.notifyPending(ctx, conn)
		pause(ctx, b.s.opts.FeedInterval)
	}
}

// notifyPending notifies of the kinds that were committed since the last notification. It returns the connection to use
// for the next one, or nil.
func (b *notifier) notifyPending(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	b.mu.Lock()
	var kinds []string
	for k := range b.kinds {
		kinds = append(kinds, string(k))
	}
	clear(b.kinds)
	b.mu.Unlock()
	if len(kinds) == 0 || b.s.opts.Hooks.BeforeNotify != nil && !b.s.opts.Hooks.BeforeNotify() {
		return conn
	}
	return b.notify(context.WithoutCancel(ctx), conn, b.sender+" "+strings.Join(kinds, ","))
}

// notify sends one notification and returns the connection to use for the next one, or nil.
func (b *notifier) notify(ctx context.Context, conn *pgx.Conn, payload string) *pgx.Conn {
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
