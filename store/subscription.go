package store

import (
	"context"
	"sync"
)

// Limits of the queue of one subscriber.
const (
	queueChanges = 10_000
	queueBytes   = 64 << 20
)

// Subscription is the queue of one subscriber. Several goroutines may use it.
type Subscription struct {
	b     *Broadcast
	match func(*Change) bool
	woken chan struct{} // holds a token when the queue has rounds
	ended chan struct{} // closed when err is set

	mu      sync.Mutex
	queue   []Round
	changes int
	bytes   int
	err     error
}

// enqueue adds the changes of a round that match, and its cursor. It ends the subscription with
// ErrTooSlow when the queue is full.
func (s *Subscription) enqueue(r Round) {
	matching := Round{Cursor: r.Cursor, Number: r.Number, at: r.at, committedAfter: r.committedAfter, safe: r.safe}
	size := 0
	for _, c := range r.Changes {
		if s.match(c) {
			matching.Changes = append(matching.Changes, c)
			size += sizeOf(c.Document)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case len(matching.Changes) == 0:
		if matching.Cursor == "" {
			return
		}
		if n := len(s.queue); n > 0 && len(s.queue[n-1].Changes) == 0 {
			s.queue = s.queue[:n-1] // an empty round has a cursor only, and the latest replaces it
		}
		s.queue = append(s.queue, matching)
	case s.changes+len(matching.Changes) > queueChanges || s.bytes+size > queueBytes && s.changes > 0:
		s.stop(ErrTooSlow)
	default:
		s.queue = append(s.queue, matching)
		s.changes += len(matching.Changes)
		s.bytes += size
	}
	s.wake()
}

// fail ends the subscription with an error, unless it has ended.
func (s *Subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.stop(err)
	}
	s.wake()
}

// stop drops the queue and sets the error. The caller holds mu.
func (s *Subscription) stop(err error) {
	s.err = err
	s.queue, s.changes, s.bytes = nil, 0, 0
	close(s.ended)
}

// wake puts the token into woken.
func (s *Subscription) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Woken returns a channel that gets a token when the queue has new rounds or the subscription has
// ended. A receiver then calls Take.
func (s *Subscription) Woken() <-chan struct{} { return s.woken }

// Ended returns a channel that is closed when the subscription has ended with an error, which
// Reason returns.
func (s *Subscription) Ended() <-chan struct{} { return s.ended }

// Reason returns why the subscription ended: ErrTooSlow, or ErrGone when the database was restored.
// It returns nil while the subscription lasts.
func (s *Subscription) Reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Take removes all rounds from the queue and returns them, which may be none. When the subscription
// has ended it returns the error of Reason. It does not wait.
func (s *Subscription) Take() ([]Round, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	q := s.queue
	s.queue, s.changes, s.bytes = nil, 0, 0
	return q, nil
}

// Next waits until the queue has new rounds and then calls Take. It returns the cause of ctx when
// ctx ends first.
func (s *Subscription) Next(ctx context.Context) ([]Round, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.woken:
		return s.Take()
	}
}
