package maestro

import (
	"context"
	"errors"
	"sync"

	"atoll.dev/store"
)

// change is one document of the feed, with its records read at most once for
// all who follow.
type change struct {
	doc  store.Document
	once sync.Once
	spec specRecord
	stat statusRecord
	err  error
}

func (c *change) records() (specRecord, statusRecord, error) {
	c.once.Do(func() {
		if c.spec, c.err = specOf(c.doc); c.err == nil {
			c.stat, c.err = statusOf(c.doc)
		}
	})
	return c.spec, c.stat, c.err
}

// batch is what a subscriber gets at once. The cursor is where the feed stands
// after it.
type batch struct {
	changes []*change
	cursor  store.Cursor
	round   uint64 // of the process's follower; see feed.published
}

// feed is this process's one follower of the store, fanned out in memory.
// Each subscriber has a bounded queue; one that is too slow is cut off and has
// to come again, so it delays nobody.
type feed struct {
	mu    sync.Mutex
	subs  map[*subscription]struct{}
	round uint64
}

// Limits of what waits for one subscriber.
const (
	queueChanges = 8_000
	queueBytes   = 64 << 20
)

// Why a subscription ended.
var (
	errTooSlow  = errors.New("the subscriber is too slow")
	errFeedGone = errors.New("the database was restored")
)

// subscription is one subscriber's queue.
type subscription struct {
	feed  *feed
	match func(*change) bool
	woken chan struct{} // holds a token when there is something to take
	ended chan struct{} // closed when there is a reason

	mu      sync.Mutex
	queue   []batch
	changes int
	bytes   int
	err     error
}

func newFeed() *feed { return &feed{subs: map[*subscription]struct{}{}} }

// subscribe begins a subscription to the changes that match. What was
// published before is not in it.
func (f *feed) subscribe(match func(*change) bool) *subscription {
	s := &subscription{feed: f, match: match, woken: make(chan struct{}, 1), ended: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs[s] = struct{}{}
	return s
}

// close ends the subscription.
func (s *subscription) close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	delete(s.feed.subs, s)
}

// publish hands documents to all subscribers.
func (f *feed) publish(docs []store.Document, cursor store.Cursor) {
	changes := make([]*change, len(docs))
	for i := range docs {
		changes[i] = &change{doc: docs[i]}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.round++
	for s := range f.subs {
		s.offer(changes, cursor, f.round)
	}
}

// published is the number of the last round. A round that begins after a read
// of the store has ended carries nothing older than that read; the round under
// way may.
func (f *feed) published() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.round
}

// fail ends all subscriptions, because the feed cannot be continued.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs {
		s.fail(err)
	}
}

func (s *subscription) offer(changes []*change, cursor store.Cursor, round uint64) {
	var mine []*change
	size := 0
	for _, c := range changes {
		if s.match(c) {
			mine = append(mine, c)
			size += len(c.doc.Wire) + len(c.doc.Spec) + len(c.doc.Status)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case len(mine) == 0:
		if n := len(s.queue); n > 0 && len(s.queue[n-1].changes) == 0 {
			s.queue = s.queue[:n-1] // an empty one says where the feed stands, and the latest says all
		}
		s.queue = append(s.queue, batch{cursor: cursor, round: round})
	case s.changes+len(mine) > queueChanges || s.bytes+size > queueBytes && s.changes > 0:
		s.stop(errTooSlow)
	default:
		s.queue = append(s.queue, batch{changes: mine, cursor: cursor, round: round})
		s.changes += len(mine)
		s.bytes += size
	}
	s.wake()
}

func (s *subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.stop(err)
	}
	s.wake()
}

func (s *subscription) stop(err error) {
	s.err = err
	s.queue, s.changes, s.bytes = nil, 0, 0
	close(s.ended)
}

// reason is why the subscription ended, nil while it has not.
func (s *subscription) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *subscription) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// take returns what waits, or the reason why the subscription ended. It is
// called after woken.
func (s *subscription) take() ([]batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	q := s.queue
	s.queue, s.changes, s.bytes = nil, 0, 0
	return q, nil
}

// next waits for what comes.
func (s *subscription) next(ctx context.Context) ([]batch, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.woken:
		return s.take()
	}
}
