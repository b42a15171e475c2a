package agent

import (
	"context"
	"sync"

	"atoll.dev/api/work"
)

// inbox passes events to the core's goroutine. post never blocks: the broker's window
// and the number of calls bound the queue.
type inbox struct {
	mu     sync.Mutex
	events []event
	ready  chan struct{}
}

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (b *inbox) post(ev event) {
	b.mu.Lock()
	b.events = append(b.events, ev)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

func (b *inbox) take() []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := b.events
	b.events = nil
	return events
}

// lane is a class of calls with a queue of its own.
type lane int

const (
	laneRemove lane = iota // removals and deletions
	laneApply              // and discovery, which an apply waits for
	laneBegin              // the first call of a work
	laneRecord             // no other effect waits for it
	lanes
)

// turns is the order in which the pool serves the lanes. An empty lane loses its
// turn, so each lane waits for at most one round of the others: many new works do not
// delay deletions, and many deletions do not delay new works. Removals have every
// second turn, and a work that has begun comes before a new one.
var turns = [...]lane{
	laneRemove,
	laneApply,
	laneRemove,
	laneBegin,
	laneRemove,
	laneApply,
	laneRemove,
	laneBegin,
	laneRemove,
	laneApply,
	laneRemove,
	laneBegin,
	laneRemove,
	laneRecord,
}

// laneOf returns the lane of an effect and its work.
func laneOf(e effect) (lane, work.ID) {
	switch e := e.(type) {
	case effRemove:
		return laneRemove, e.id
	case effDeleteAMW:
		return laneRemove, e.id
	case effFinalizeAMW:
		return laneRemove, e.id
	case effCreateAMW:
		return laneBegin, e.id
	case effTakeOverAMW:
		return laneBegin, e.id
	case effRecordAMW:
		return laneRecord, e.id
	case effApply:
		return laneApply, e.id
	}
	return laneApply, ""
}

// pool runs calls on a fixed number of goroutines. The lanes take turns, and in a lane
// the works take turns: a work with a thousand manifests does not delay the others.
type pool struct {
	mu     sync.Mutex
	cond   *sync.Cond
	queues [lanes]queue
	turn   int
	closed bool
	wg     sync.WaitGroup
}

// queue holds calls by work. Works take turns, the calls of one stay in order.
type queue struct {
	works []work.ID // with queued calls, the next one first
	calls map[work.ID][]effect
}

func (q *queue) add(id work.ID, e effect) {
	if q.calls == nil {
		q.calls = map[work.ID][]effect{}
	}
	if len(q.calls[id]) == 0 {
		q.works = append(q.works, id)
	}
	q.calls[id] = append(q.calls[id], e)
}

func (q *queue) next() effect {
	id := q.works[0]
	q.works = q.works[1:]
	e := q.calls[id][0]
	if rest := q.calls[id][1:]; len(rest) > 0 {
		q.calls[id] = rest
		q.works = append(q.works, id)
	} else {
		delete(q.calls, id)
	}
	return e
}

func newPool(ctx context.Context, workers int, call func(context.Context, effect)) *pool {
	p := &pool{}
	p.cond = sync.NewCond(&p.mu)
	for range workers {
		p.wg.Go(func() {
			for {
				e, ok := p.next()
				if !ok {
					return
				}
				call(ctx, e)
			}
		})
	}
	return p
}

func (p *pool) add(e effect) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, id := laneOf(e)
	p.queues[l].add(id, e)
	p.cond.Signal()
}

func (p *pool) next() (effect, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed {
		for range turns {
			q := &p.queues[turns[p.turn%len(turns)]]
			p.turn++
			if len(q.works) > 0 {
				return q.next(), true
			}
		}
		p.cond.Wait()
	}
	return nil, false
}

// close drops all queued calls and returns when no call is in flight.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.cond.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}
