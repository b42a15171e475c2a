package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pause"
)

// channel is the NOTIFY channel; the payload is "<sender> <kind>,<kind>".
const channel = "atoll_store"

// notifier notifies other processes of commits. It sends NOTIFY on a connection of its own after
// the commits, with a pause of feedPause after each, because a NOTIFY inside the writing transaction would
// hold a server-wide lock until that commit is on disk. A notification may be lost: followers poll,
// too.
type notifier struct {
	s      *Store
	sender string        // identifies this process in its notifications
	wakeup chan struct{} // has a token when kinds is not empty

	mu    sync.Mutex
	kinds map[Kind]struct{} // committed since the last notification
}

func newNotifier(s *Store) *notifier {
	return &notifier{s: s, sender: fmt.Sprintf("%016x", rand.Uint64()), wakeup: make(chan struct{}, 1),
		kinds: map[Kind]struct{}{}}
}

// notifyCommit wakes the followers of this process after a commit of these kinds, and makes the
// notifier notify other processes. It does not block.
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
	case s.notifier.wakeup <- struct{}{}:
	default:
	}
}

// run sends notifications until ctx ends, and then once more.
func (n *notifier) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			closeQuietly(conn)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			// A process that writes and exits at once notifies, too.
			conn = n.notifyPending(ctx, conn)
			return
		case <-n.wakeup:
		}
		started := time.Now()
		conn = n.notifyPending(ctx, conn)
		pause.For(ctx, n.s.feedPause(time.Since(started)))
	}
}

// notifyPending notifies of the kinds that were committed since the last notification. It returns
// the connection to use for the next one, or nil.
func (n *notifier) notifyPending(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	n.mu.Lock()
	var kinds []string
	for k := range n.kinds {
		kinds = append(kinds, string(k))
	}
	clear(n.kinds)
	n.mu.Unlock()
	if len(kinds) == 0 || n.s.opts.Hooks.BeforeNotify != nil && !n.s.opts.Hooks.BeforeNotify() {
		return conn
	}
	return n.notify(context.WithoutCancel(ctx), conn, n.sender+" "+strings.Join(kinds, ","))
}

// notify sends one notification and returns the connection to use for the next one, or nil.
func (n *notifier) notify(ctx context.Context, conn *pgx.Conn, payload string) *pgx.Conn {
	ctx, cancel := context.WithTimeout(ctx, n.s.opts.AcquireTimeout)
	defer cancel()
	if conn == nil {
		var err error
		if conn, err = n.s.connect(ctx); err != nil {
			return nil // the followers of other processes poll
		}
	}
	if _, err := conn.Exec(ctx, `select pg_notify('`+channel+`', $1)`, payload); err != nil {
		closeQuietly(conn)
		return nil
	}
	return conn
}

// closeQuietly closes a connection within a second and ignores errors.
func closeQuietly(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
}
