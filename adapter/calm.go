package adapter

import (
	"context"
	"sync"
	"time"
)

// CalmQueue has the events of resources that may have changed while nobody
// looked. It passes them on slowly: the full comparison behind a watch must not
// delay what is known to have changed. Use NewCalmQueue. Its methods may be
// called by several goroutines, Run by one.
type CalmQueue struct {
	pause time.Duration
	more  chan struct{} // has a token when there are events

	mu    sync.Mutex
	order []string         // ids, in the order of their coming
	event map[string]Event // by id, of the newest generation
}

// NewCalmQueue returns a queue that passes on so many events in a second.
func NewCalmQueue(pace float64) *CalmQueue {
	return &CalmQueue{pause: time.Duration(float64(time.Second) / pace), more: make(chan struct{}, 1),
		event: map[string]Event{}}
}

// Add queues events; of a resource that waits already only the newest generation
// is kept.
func (q *CalmQueue) Add(events ...Event) {
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

// Run passes events on until ctx ends. Those that tell does not take, because
// they are another replica's, cost no time.
func (q *CalmQueue) Run(ctx context.Context, tell func(Event) (taken bool)) {
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
		if !tell(e) {
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

func (q *CalmQueue) next() (e Event, ok bool) {
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
