package adapter

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// pool runs the tasks of a queue, a few at a time. Its Run goroutine alone
// owns the queue.
type pool struct {
	run      func(context.Context, task) ending
	parallel int
	grace    time.Duration

	events  chan told
	ended   chan outcome
	stopped chan struct{}
}

// told is an event for the queue.
type told struct {
	task
	watched bool // a watch told it, not the bus
}

// ending is how a run ended.
type ending int

const (
	succeeded ending = iota
	failed           // another try may mend it
	notBegun         // it is another replica's, or waits for the lease
)

// outcome is the end of a run.
type outcome struct {
	id string
	ending
}

func newPool(parallel int, grace time.Duration, run func(context.Context, task) ending) *pool {
	return &pool{run: run, parallel: parallel, grace: grace, events: make(chan told), ended: make(chan outcome),
		stopped: make(chan struct{})}
}

// tell queues an event. It does not wait for anything but its turn; events that
// come when the pool stops are dropped.
func (p *pool) tell(e told) {
	e.since = time.Now()
	select {
	case p.events <- e:
	case <-p.stopped:
	}
}

// errStopping ends runs that take too long when the process stops.
var errStopping = errors.New("the adapter is stopping")

// Run runs what is due until ctx ends. Runs under way then have their grace.
func (p *pool) Run(ctx context.Context) {
	q := newQueue(func(d time.Duration) time.Duration { return d/2 + rand.N(d) })
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer func() {
		end := time.AfterFunc(p.grace, func() { cancel(errStopping) })
		running.Wait()
		end.Stop()
		cancel(nil)
	}()
	defer close(p.stopped) // first: a run may tell of something, and is waited for
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for busy := 0; ; {
		var due <-chan time.Time
		for busy < p.parallel {
			t, ok, wait := q.next(time.Now())
			if !ok {
				if wait > 0 {
					timer.Reset(wait)
					due = timer.C
				}
				break
			}
			busy++
			running.Go(func() {
				how := p.run(work, t)
				select {
				case p.ended <- outcome{t.ID, how}:
				case <-ctx.Done():
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case e := <-p.events:
			if e.watched {
				q.change(e.task, time.Now())
			} else {
				q.add(e.task, time.Now())
			}
		case o := <-p.ended:
			busy--
			q.done(o.id, o.ending, time.Now())
		case <-due:
		}
	}
}
