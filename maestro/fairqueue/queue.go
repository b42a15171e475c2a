// Package fairqueue holds events of many consumers until a worker takes them, and serves the consumers in turn.
//
// Each consumer has a queue of its own with a bounded share: a consumer that sends too much delays and loses its own
// events only. Only package maestro and its packages import it.
package fairqueue

import (
	"context"
	"sync"

	"atoll.dev/api/work"
)

// Queue holds the events of agents until a worker takes them. Each consumer
// has a queue of its own with a bounded share, and the queues are served in turn,
// so that an agent that floods the server delays and loses its own events only.
// While a worker has events of a consumer no other worker gets any of it: events
// of one consumer are taken in their order.
type Queue[T any] struct {
	limits Shares

	mu     sync.Mutex
	queues map[work.Consumer]*consumerQueue[T]
	ready  []*consumerQueue[T] // with events, and of no worker, in turn
	length int                 // of all queues
	bytes  int
	woken  chan struct{} // has a token when there is something to take
	room   chan struct{} // closed when an item was taken; nil while no caller waits for room
}

// Shares bound a Queue. It refuses events of a consumer whose share is used up;
// when all queues together are full, it refuses events of each consumer that has
// more than an equal part.
type Shares struct {
	Items, Bytes       int // of one consumer
	AllItems, AllBytes int // of all
	Turn               int // items of one consumer that a worker takes at most, while others wait
}

type consumerQueue[T any] struct {
	consumer work.Consumer
	items    []*queued[T]
	byKey    map[string]*queued[T]
	bytes    int
	busy     bool // a worker has some of its events
	listed   bool // in ready
	refused  bool // an event was refused since the queue was empty last
}

type queued[T any] struct {
	value T
	key   string // a later event with the same key replaces the event; "": no event replaces it
	size  int
}

// New returns an empty queue with limits.
func New[T any](limits Shares) *Queue[T] {
	return &Queue[T]{limits: limits, queues: map[work.Consumer]*consumerQueue[T]{}, woken: make(chan struct{}, 1)}
}

// Put adds an event to its consumer's queue. It has three outcomes:
//
//  1. The event waits in the queue: old is nil and ok is true.
//  2. An event of the same key waits there, replaces allows it, and the consumer's share has the bytes that the new
//     event is larger by: the new event takes the place of the old one, which Put returns; ok is true.
//  3. The consumer's share has no room: Put keeps nothing of the new event and ok is false. An old event of the same
//     key stays. Done returns the consumer when its queue is empty again, so that the caller can ask for the event.
func (q *Queue[T]) Put(consumer work.Consumer, key string, size int, value T, replaces func(old T) bool) (old *T,
	ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.queues[consumer]
	if c == nil {
		c = &consumerQueue[T]{consumer: consumer, byKey: map[string]*queued[T]{}}
		q.queues[consumer] = c
	}
	if was := c.byKey[key]; key != "" && was != nil && replaces(was.value) {
		if len(c.items) > 1 && size > was.size && !q.hasBytes(c, size-was.size) {
			c.refused = true // the queue is not empty, so a worker takes it, and Done returns the consumer
			return nil, false
		}
		replaced := was.value
		c.bytes += size - was.size
		q.bytes += size - was.size
		was.value, was.size = value, size
		return &replaced, true
	}
	if !q.hasRoom(c, size) {
		c.refused = true
		q.updateReady(c)
		return nil, false
	}
	it := &queued[T]{value, key, size}
	c.items = append(c.items, it)
	if key != "" {
		c.byKey[key] = it
	}
	c.bytes += size
	q.length, q.bytes = q.length+1, q.bytes+size
	q.updateReady(c)
	return nil, true
}

// hasRoom reports whether a consumer may add an event. An empty queue always has room.
func (q *Queue[T]) hasRoom(c *consumerQueue[T], size int) bool {
	n, l := len(c.items), q.limits
	if n == 0 {
		return true
	}
	return n < l.Items && (q.length < l.AllItems || n < l.AllItems/max(len(q.queues), 1)) && q.hasBytes(c, size)
}

// hasBytes reports whether the events of a consumer may grow by more bytes.
func (q *Queue[T]) hasBytes(c *consumerQueue[T], more int) bool {
	l := q.limits
	return c.bytes+more <= l.Bytes && (q.bytes+more <= l.AllBytes || c.bytes < l.AllBytes/max(len(q.queues), 1))
}

// updateReady puts a queue with events in the list for workers, and removes an empty
// queue. The caller has the lock.
func (q *Queue[T]) updateReady(c *consumerQueue[T]) {
	switch {
	case len(c.items) > 0 && !c.busy && !c.listed:
		c.listed = true
		q.ready = append(q.ready, c)
		q.wake()
	case len(c.items) == 0 && !c.busy && !c.listed:
		delete(q.queues, c.consumer)
	}
}

func (q *Queue[T]) wake() {
	select {
	case q.woken <- struct{}{}:
	default:
	}
}

// Taken are events that a worker has taken. The worker must call Done with it.
type Taken[T any] struct {
	Items     []T
	consumers []work.Consumer
}

// Take waits for events, and takes at most limit of one or several consumers. It
// returns none when ctx ends.
func (q *Queue[T]) Take(ctx context.Context, limit int) (t Taken[T]) {
	for {
		if t = q.takeNow(limit); len(t.Items) > 0 {
			return t
		}
		select {
		case <-ctx.Done():
			return t
		case <-q.woken:
		}
	}
}

func (q *Queue[T]) takeNow(limit int) (t Taken[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(t.Items) < limit && len(q.ready) > 0 {
		c := q.ready[0]
		q.ready[0] = nil
		q.ready = q.ready[1:]
		n := min(len(c.items), limit-len(t.Items))
		if len(q.ready) > 0 || len(t.consumers) > 0 {
			n = min(n, q.limits.Turn)
		}
		for i, it := range c.items[:n] {
			t.Items = append(t.Items, it.value)
			c.bytes, q.bytes = c.bytes-it.size, q.bytes-it.size
			if c.byKey[it.key] == it {
				delete(c.byKey, it.key)
			}
			c.items[i] = nil
		}
		c.items = c.items[n:]
		q.length -= n
		c.busy, c.listed = true, false
		t.consumers = append(t.consumers, c.consumer)
	}
	if len(q.ready) > 0 {
		q.wake() // another worker
	}
	if q.room != nil && len(t.Items) > 0 {
		close(q.room)
		q.room = nil
	}
	return t
}

// Done lets other workers take events of these consumers again. It returns the
// consumers whose queues are empty now and of whose events some were refused.
func (q *Queue[T]) Done(t Taken[T]) (refused []work.Consumer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, consumer := range t.consumers {
		c := q.queues[consumer]
		c.busy = false
		if len(c.items) == 0 && c.refused {
			c.refused = false
			refused = append(refused, consumer)
		}
		q.updateReady(c)
	}
	return refused
}

// RoomChanged returns a channel that is closed when a worker has taken events.
func (q *Queue[T]) RoomChanged() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.room == nil {
		q.room = make(chan struct{})
	}
	return q.room
}
