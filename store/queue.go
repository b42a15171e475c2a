package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// queue lets callers share statements. A caller that finds no statement running sends its item at once. Callers that
// arrive while a statement runs wait, and the next statement serves all of them: the first of them sends it. The zero
// value is ready for use by several goroutines.
//
// The callers of a group often come back at once, with their next items. So the statement after that of a group waits
// for as many items as the group had, for the queue's gathering time at most. After a statement for one item nobody
// waits.
//
// Nobody waits for long: a statement that has run for the queue's patience, because of a locked row or a slow disk,
// delays the next one no more. When as many items wait as a statement serves, the caller of the last one sends at once.
type queue[T any] struct {
	mu sync.Mutex
	// running counts the callers that send, or are about to, without those whose statements have run for the patience. It
	// is more than 0 if items wait.
	running int
	waiting []*turn[T]

	lastSize int           // how many items the last statement had
	lastEnd  time.Time     // when a statement last ended, or had run for the patience
	gathered chan struct{} // closed when lastSize items wait; nil: no caller waits for that

	patience, gathering time.Duration // set before the first use; 0: queuePatience and gatheringTime
}

const (
	// maxShared is how many items share one statement at most.
	maxShared = 32
	// queuePatience is several times as long as a statement with a commit takes on a busy machine.
	queuePatience = 20 * time.Millisecond
	// gatheringTime is about as long as callers need from an answer to their next call.
	gatheringTime = 500 * time.Microsecond
)

// turn is the place of one item in a queue.
type turn[T any] struct {
	item T
	// ready gets a token when the caller must send a group. It is closed when another caller has sent the item.
	ready  chan struct{}
	isSent bool // the statement has ended, and the item has its outcome

	isToken bool // ready has a token; the queue's lock protects it
}

// wait is how a wait in the queue ended.
type wait uint8

const (
	mustSend wait = iota // the caller must send a group
	wasSent              // another caller has sent the item
	hasLeft              // the caller's context has ended, and the item has left the queue
)

// errAbandoned is the error of an item whose sender has panicked.
var errAbandoned = fmt.Errorf("%w: the caller that sent it has panicked", ErrUnknownOutcome)

// share gives the item to send, together with those of other callers, and returns nil when send has set its outcome.
// While the item waits, the end of ctx ends the call with its cause: then the item was not sent. Once send has the
// item, share waits for its outcome. A caller that sends does not look at ctx itself. send gets a context that no
// caller ends if the items are several.
func (q *queue[T]) share(ctx context.Context, item T, send func(context.Context, []T)) error {
	t, isFirst := q.enter(item)
	ended := mustSend
	if !isFirst {
		ended = q.await(ctx, t)
	}
	switch ended {
	case hasLeft:
		return context.Cause(ctx)
	case mustSend:
		if group := q.takeGroup(t); group != nil {
			q.send(ctx, t, group, send)
		} else {
			<-t.ready
		}
	}
	if !t.isSent {
		return errAbandoned
	}
	return nil
}

// enter puts an item into the queue. isFirst means that the caller must send a group.
func (q *queue[T]) enter(item T) (t *turn[T], isFirst bool) {
	t = &turn[T]{item: item, ready: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, t)
	if q.gathered != nil && len(q.waiting) >= q.lastSize {
		close(q.gathered)
		q.gathered = nil
	}
	isFirst = q.running == 0 || len(q.waiting) == maxShared
	if isFirst {
		q.running++
	}
	return t, isFirst
}

// await waits until the caller must send a group, or another caller has sent its item. The end of ctx ends the wait,
// unless another caller is sending the item.
func (q *queue[T]) await(ctx context.Context, t *turn[T]) wait {
	select {
	case _, isToken := <-t.ready:
		if isToken {
			return mustSend
		}
		return wasSent
	case <-ctx.Done():
	}
	if q.withdraw(t) {
		return hasLeft
	}
	<-t.ready
	return wasSent
}

// withdraw removes the item of a caller whose context has ended. If the caller was to send a group, the next one is. It
// returns false if another caller is sending the item: then the caller must wait for that.
func (q *queue[T]) withdraw(t *turn[T]) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, t)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	if t.isToken {
		<-t.ready
		q.passOn()
	}
	return i >= 0
}

// gather waits until as many items wait as the last statement had, if it has just ended, for the gathering time at
// most.
func (q *queue[T]) gather() {
	limit := cmp.Or(q.gathering, gatheringTime)
	q.mu.Lock()
	if q.gathered != nil || len(q.waiting) >= q.lastSize || time.Since(q.lastEnd) > limit {
		q.mu.Unlock()
		return
	}
	enough := make(chan struct{})
	q.gathered = enough
	q.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-enough:
	case <-timer.C:
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.gathered == enough {
			q.gathered = nil
		}
	}
}

// takeGroup gathers and returns the group that the caller must send. It returns nil if another caller sends its item.
func (q *queue[T]) takeGroup(t *turn[T]) []*turn[T] {
	q.gather()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Contains(q.waiting, t) {
		q.passOn()
		return nil
	}
	n := min(len(q.waiting), maxShared) // t is among the first ones: it is the first, or was the last of maxShared
	group := q.waiting[:n:n]
	q.waiting, q.lastSize = slices.Clone(q.waiting[n:]), n
	return group
}

// send sends a group, of which own is the caller's, and then tells the callers of the others.
func (q *queue[T]) send(ctx context.Context, own *turn[T], group []*turn[T], send func(context.Context, []T)) {
	items := make([]T, len(group))
	for i, t := range group {
		items[i] = t.item
	}
	if len(group) > 1 {
		ctx = context.WithoutCancel(ctx) // the end of one caller's context must not end the others
	}
	pass := sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.lastEnd = time.Now()
		q.passOn()
	})
	timer := time.AfterFunc(cmp.Or(q.patience, queuePatience), pass)
	defer func() {
		timer.Stop()
		pass()
		for _, t := range group {
			if t != own {
				close(t.ready)
			}
		}
	}()
	send(ctx, items)
	for _, t := range group {
		t.isSent = true
	}
}

// passOn ends the sending of the calling goroutine. If it was the last that sends, and items wait, the caller of the
// first of them sends the next group. The caller holds the lock.
func (q *queue[T]) passOn() {
	if q.running > 1 || len(q.waiting) == 0 {
		q.running--
		return
	}
	first := q.waiting[0]
	first.isToken = true
	first.ready <- struct{}{}
}
