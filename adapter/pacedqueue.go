package adapter

import (
	"context"
	"sync"
	"time"
)

// PacedQueue delivers events at a limited rate. After a full comparison a transport adds all
// resources to a PacedQueue, so that they do not delay resources whose objects changed. The queue
// keeps one event for each resource. Make it with NewPacedQueue. Several goroutines may call Add,
// only one calls Run.
type PacedQueue struct {
	pause time.Duration
	ready chan struct{} // has a token when an event was added

	mu    sync.Mutex
	order []string         // ids of resources in the order of arrival
	byID  map[string]Event // the event of the newest generation
}

// NewPacedQueue returns a queue that delivers at most eventsPerSecond events in a second.
func NewPacedQueue(eventsPerSecond float64) *PacedQueue {
	return &PacedQueue{pause: time.Duration(float64(time.Second) / eventsPerSecond), ready: make(chan struct{}, 1),
		byID: map[string]Event{}}
}

// Add queues events and does not block. When an event of the same resource waits, Add keeps the
// event of the newer generation, and of two equal generations the new event. It ignores an event
// without an ID.
func (q *PacedQueue) Add(events ...Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range events {
		waiting, ok := q.byID[e.ID]
		switch {
		case e.ID == "":
			continue
		case !ok:
			q.order = append(q.order, e.ID)
		case e.Generation < waiting.Generation:
			continue
		}
		q.byID[e.ID] = e
	}
	if len(q.order) > 0 {
		select {
		case q.ready <- struct{}{}:
		default:
		}
	}
}

// Run calls deliver for each event until ctx ends, one at a time. After an event that deliver
// takes, Run pauses. After an event that deliver does not take, because it belongs to another
// replica, Run goes on at once. When ctx ends during deliver, Run queues an event that was not
// taken again; a later Run delivers it.
func (q *PacedQueue) Run(ctx context.Context, deliver func(Event) (taken bool)) {
	for {
		e, ok := q.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-q.ready:
			}
			continue
		}
		if !deliver(e) {
			if ctx.Err() != nil {
				q.Add(e)
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

// next removes the event that waits longest and returns it; ok is false when the queue is empty.
func (q *PacedQueue) next() (e Event, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		q.order = nil // its array may be large
		return e, false
	}
	id := q.order[0]
	q.order = q.order[1:]
	e = q.byID[id]
	delete(q.byID, id)
	return e, true
}
