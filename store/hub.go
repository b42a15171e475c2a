package store

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pause"
)

// hub wakes the followers of this process: at once for commits of this process, and for commits of
// other processes when their notification arrives on one LISTEN connection. The hub connects when
// the first follower subscribes.
type hub struct {
	s      *Store
	needed chan struct{} // holds a token when the first follower has subscribed

	mu        sync.Mutex
	followers map[*hubEntry]struct{}
}

// hubEntry is one follower of this process that the hub wakes. It has no queue; the queue of a subscriber of a
// Broadcast is a Subscription.
type hubEntry struct {
	kinds map[Kind]struct{}
	woken chan struct{} // has a token after a commit of these kinds
}

func newHub(s *Store) *hub {
	return &hub{s: s, needed: make(chan struct{}, 1), followers: map[*hubEntry]struct{}{}}
}

// subscribe adds a follower of these kinds, until leave.
func (h *hub) subscribe(kinds []Kind) (sub *hubEntry, leave func()) {
	sub = &hubEntry{kinds: map[Kind]struct{}{}, woken: make(chan struct{}, 1)}
	for _, k := range kinds {
		sub.kinds[k] = struct{}{}
	}
	h.mu.Lock()
	h.followers[sub] = struct{}{}
	h.mu.Unlock()
	select {
	case h.needed <- struct{}{}:
	default:
	}
	return sub, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.followers, sub)
	}
}

// wake wakes the followers of any of these kinds; without kinds all followers.
func (h *hub) wake(kinds ...Kind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for sub := range h.followers {
		wanted := len(kinds) == 0
		for _, k := range kinds {
			if _, ok := sub.kinds[k]; ok {
				wanted = true
				break
			}
		}
		if !wanted {
			continue
		}
		select {
		case sub.woken <- struct{}{}:
		default:
		}
	}
}

// run listens from the first subscription on until ctx ends, and connects again with back-off.
func (h *hub) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-h.needed:
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := h.s.connect(ctx)
		if err == nil {
			wait = 50 * time.Millisecond
			err = h.listen(ctx, conn)
			closeQuietly(conn)
		}
		if ctx.Err() != nil {
			return
		}
		h.s.log.Warn("listening for changes was interrupted; followers poll", "error", err)
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// listen wakes followers for the notifications of other processes, until the connection breaks or
// ctx ends.
func (h *hub) listen(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return err
	}
	h.wake() // commits before LISTEN caused no notification here
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		sender, list, _ := strings.Cut(n.Payload, " ")
		if sender == h.s.notifier.sender {
			continue // notifyCommit woke the followers of this process
		}
		var kinds []Kind
		for k := range strings.SplitSeq(list, ",") {
			kinds = append(kinds, Kind(k))
		}
		h.wake(kinds...)
	}
}
