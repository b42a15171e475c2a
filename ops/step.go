package ops

import (
	"context"
	"errors"
	"sync"
	"time"
)

// longStep is how long a step may keep its turn. A step that takes longer waits for another service rather than for a
// processor: without its turn it delays no other, however many hang.
const longStep = time.Second

// workOn calls the worker until the operation has ended or an attempt has failed, and renews the lease
// meanwhile. It returns the state after its last event. mine is the turn for the first call; workOn gives it back.
func (e *Engine) workOn(ctx context.Context, t *task, s State, mine *turn) (State, error) {
	renew := time.NewTicker(e.o.Lease / 3)
	defer renew.Stop()
	for {
		leave := sync.OnceFunc(func() { e.gate.leave(mine) })
		tooLong := time.AfterFunc(longStep, leave)
		after, again, err := e.step(ctx, s)
		tooLong.Stop()
		leave()
		if ctx.Err() != nil {
			return s, e.release(ctx, s)
		}
		if err != nil || after.Status.IsTerminal() || after.Lease == nil {
			return after, err
		}
		if s, mine, err = e.awaitTurn(ctx, t, after, again, renew.C); mine == nil {
			return s, err
		}
	}
}

// step calls the worker once and commits its outcome. again is the time until the next call. Progress that changes
// nothing is not committed.
func (e *Engine) step(ctx context.Context, s State) (after State, again time.Duration, err error) {
	leased, cancel := context.WithTimeout(ctx, s.Lease.Until.Sub(e.o.Now())-e.o.Lease/6)
	outcome := e.o.Worker.Work(leased, s)
	cancel()
	if again = outcome.Again; again == 0 {
		again = defaultWorkPause
	}
	if ctx.Err() != nil || s.alreadyHas(outcome.Event) && outcome.Change == nil {
		return s, again, nil
	}
	outcome.Event.Fence = s.Fence
	if after, err = e.commitWith(ctx, s.ID, outcome.Event, outcome.Change); err != nil {
		return s, again, err
	}
	return after, again, nil
}

// awaitTurn waits until the worker is to be called again, because of a wake or after a time, and until the gate permits
// the call. It renews the lease meanwhile. The turn is nil if the operation has ended, the lease is lost, another
// operation takes the place of the task, or ctx has ended.
func (e *Engine) awaitTurn(ctx context.Context, t *task, s State, again time.Duration, renew <-chan time.Time) (State,
	*turn, error) {
	timer := time.NewTimer(again)
	defer timer.Stop()
	var mine *turn
	var ready <-chan struct{}
	join := func() {
		if mine == nil {
			mine = e.gate.join(continuing, e.o.Now())
			ready = mine.ready
		}
	}
	end := func(s State, err error) (State, *turn, error) {
		if mine != nil {
			e.gate.leave(mine)
		}
		return s, nil, err
	}
	e.recordPause(t)
	for isReady := false; !isReady; {
		select {
		case <-t.displace:
			return end(s, errors.Join(errDisplaced, e.release(ctx, s)))
		case <-ctx.Done():
			return end(s, e.release(ctx, s))
		case <-t.ended:
			return end(s, nil)
		case <-t.wake:
			join()
		case <-timer.C:
			join()
		case <-ready:
			isReady = true
		case <-renew:
		}
		if s.Lease.Until.Sub(e.o.Now()) > e.o.Lease*2/3 {
			continue // the lease is long enough for a call of the worker
		}
		after, err := e.commit(ctx, s.ID, Event{Kind: Renew, Fence: s.Fence, For: e.o.Lease})
		if err != nil || after.Status.IsTerminal() {
			return end(after, err)
		}
		s = after
	}
	return s, mine, nil
}
