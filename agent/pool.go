package agent

import (
	"context"
	"sync"
)

// inbox hands events to the core's goroutine. It never blocks whoever posts:
// what comes in is bounded elsewhere, by the broker's window and by the
// number of calls.
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

// pool runs calls on a fixed number of goroutines, urgent ones first; every
// fourth may be one that can wait, so that none waits for ever.
type pool struct {
	mu     sync.Mutex
	cond   *sync.Cond
	urgent []effect
	later  []effect
	taken  int
	closed bool
	wg     sync.WaitGroup
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

func (p *pool) add(e effect, urgent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if urgent {
		p.urgent = append(p.urgent, e)
	} else {
		p.later = append(p.later, e)
	}
	p.cond.Signal()
}

func (p *pool) next() (effect, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && len(p.urgent) == 0 && len(p.later) == 0 {
		p.cond.Wait()
	}
	if p.closed {
		return nil, false
	}
	p.taken++
	from := &p.urgent
	if len(p.urgent) == 0 || len(p.later) > 0 && p.taken%4 == 0 {
		from = &p.later
	}
	e := (*from)[0]
	(*from)[0] = nil
	*from = (*from)[1:]
	return e, true
}

// close drops what waits and returns when nothing runs.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.cond.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}
