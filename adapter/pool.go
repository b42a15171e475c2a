package adapter

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// pool runs the tasks of a queue, at most parallel at a time. The goroutine of Run owns the queue.
type pool struct {
	run      func(context.Context, task) ending
	parallel int
	grace    time.Duration

	events  chan hint
	ended   chan outcome
	stopped chan struct{}
}

// hint is an event for the queue: it says that a resource may need a run.
type hint struct {
	task
	watched bool // it comes from a watch, not from the bus
}

// ending is the outcome of a run.
type ending int

const (
	succeeded        ending = iota
	repaired                // it succeeded, and created or changed an object
	failed                  // a retry may succeed
	failedAfterWrite        // the same, and it created or changed an object before it failed
	notBegun                // the resource is another replica's, or its lease has expired
)

// isFailure reports whether the run failed.
func (e ending) isFailure() bool { return e == failed || e == failedAfterWrite }

// wrote reports whether the run created or changed an object.
func (e ending) wrote() bool { return e == repaired || e == failedAfterWrite }

// outcome is a run that ended.
type outcome struct {
	id string
	ending
}

func newPool(parallel int, grace time.Duration, run func(context.Context, task) ending) *pool {
	return &pool{run: run, parallel: parallel, grace: grace, events: make(chan hint), ended: make(chan outcome),
		stopped: make(chan struct{})}
}

// enqueue hands an event to the queue's goroutine. It drops events that come after the pool
// stopped.
func (p *pool) enqueue(e hint) {
	e.since = time.Now()
	select {
	case p.events <- e:
	case <-p.stopped:
	}
}

// errStopping is the cause by which runs end that exceed the grace of a stopping process.
var errStopping = errors.New("the adapter is stopping")

// Run runs due tasks until ctx ends. Runs in progress then have the grace to end by themselves.
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
	defer close(p.stopped) // before the wait above: a run in progress may enqueue an event
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
			q.endRun(o.id, o.ending, time.Now())
		case <-due:
		}
	}
}
