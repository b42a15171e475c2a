package adapter

import (
	"context"
	"sync"
	"time"
)

// PacedQueue hands on events at a limited pace. A transport puts the resources of a full comparison
// into it, so that these do not delay resources whose objects are known to have changed. It keeps one
// event for each resource. Use NewPacedQueue. Several goroutines may call Add, one calls Run.
type PacedQueue struct {
	pause time.Duration
	more  chan struct{} // has a token when there are events

	mu    sync.Mutex
	order []string         // ids in the order of arrival
	event map[string]Event // by id, of the newest generation
}

// NewPacedQueue returns a queue that hands on at most pace events in a second.
func NewPacedQueue(pace float64) *PacedQueue {
	return &PacedQueue{pause: time.Duration(float64(time.Second) / pace), more: make(chan struct{}, 1),
		event: map[string]Event{}}
}

// Add queues events. Of a resource that waits already it keeps the event of the newest generation.
func (q *PacedQueue) Add(events ...Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range events {
		waiting, ok := q.event[e.ID]
		switch {
		case e.ID == "":
			continue
		case !ok:
			q.order = append(q.order, e.ID)
		case e.Generation < waiting.Generation:
			continue
		}
		q.event[e.ID] = e
	}
	if len(q.order) > 0 {
		select {
		case q.more <- struct{}{}:
		default:
		}
	}
}

// Run calls deliver for each event until ctx ends, and pauses after each that deliver took. Events
// that it did not take belong to another replica and cost no pause.
func (q *PacedQueue) Run(ctx context.Context, deliver func(Event) (taken bool)) {
	for {
		e, ok := q.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-q.more:
			}
			continue
		}
		if !deliver(e) {
			if ctx.Err() != nil {
				q.Add(e) // for the next Run
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(q.pause):
		}
	}
}

// next removes the oldest event.
func (q *PacedQueue) next() (e Event, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		q.order = nil // its array may be large
		return e, false
	}
	id := q.order[0]
	q.order = q.order[1:]
	e = q.event[id]
	delete(q.event, id)
	return e, true
}
