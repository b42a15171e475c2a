package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sentItem is an item of a queue that counts how often it was sent.
type sentItem struct {
	n    int
	sent atomic.Int64
}

// gatedQueue is a queue whose first statement runs until proceed is closed.
type gatedQueue struct {
	queue[*sentItem]
	begun, proceed chan struct{}
	mu             sync.Mutex
	groups         [][]int
	calls          sync.WaitGroup
}

func newGatedQueue() *gatedQueue {
	q := &gatedQueue{begun: make(chan struct{}), proceed: make(chan struct{})}
	q.patience = time.Hour
	return q
}

func (q *gatedQueue) send(_ context.Context, items []*sentItem) {
	var group []int
	for _, item := range items {
		item.sent.Add(1)
		group = append(group, item.n)
	}
	q.mu.Lock()
	q.groups = append(q.groups, group)
	isFirst := len(q.groups) == 1
	q.mu.Unlock()
	if isFirst {
		close(q.begun)
		<-q.proceed
	}
}

// call shares an item, and waits until it is in the queue.
func (q *gatedQueue) call(ctx context.Context, n int, check func(error)) {
	before := q.length()
	q.calls.Go(func() { check(q.share(ctx, &sentItem{n: n}, q.send)) })
	if n == 0 {
		<-q.begun
		return
	}
	for q.length() == before {
		runtime.Gosched()
	}
}

func TestItemsThatWaitAreSentTogetherInTheirOrder(t *testing.T) {
	q := newGatedQueue()
	for n := range 5 {
		q.call(t.Context(), n, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	close(q.proceed)
	q.calls.Wait()
	if fmt.Sprint(q.groups) != "[[0] [1 2 3 4]]" {
		t.Errorf("the groups are %v", q.groups)
	}
}

// The callers of a group come back: the next statement waits for all of them. A caller alone waits for nobody.
func TestTheCallersOfAGroupShareTheNextStatement(t *testing.T) {
	q := newGatedQueue()
	q.gathering = time.Hour
	for n := range 4 {
		q.call(t.Context(), n, func(err error) {
			for range 3 {
				if n > 0 && err == nil {
					err = q.share(t.Context(), &sentItem{n: n}, q.send)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	close(q.proceed)
	q.calls.Wait()
	if len(q.groups) != 5 {
		t.Errorf("the groups are %v", q.groups)
	}
	q.lastSize = 1
	for range 2 {
		if err := q.share(t.Context(), &sentItem{}, q.send); err != nil {
			t.Error(err)
		}
	}
}

// The context of a waiting caller ends: its item is not sent, and those of the others are. So it is with the caller
// that would have sent the next group.
func TestAWaitingItemLeavesWithItsContext(t *testing.T) {
	q := newGatedQueue()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the caller has gone")
	for n := range 4 {
		callCtx, want := t.Context(), error(nil)
		if n == 1 || n == 2 {
			callCtx, want = ctx, why
		}
		q.call(callCtx, n, func(err error) {
			if !errors.Is(err, want) {
				t.Errorf("item %d: %v", n, err)
			}
		})
	}
	cancel(why)
	for q.length() != 1 {
		runtime.Gosched()
	}
	close(q.proceed)
	q.calls.Wait()
	if fmt.Sprint(q.groups) != "[[0] [3]]" {
		t.Errorf("the groups are %v", q.groups)
	}
}

// A statement that runs for long delays the others only for the queue's patience.
func TestASlowStatementDelaysTheOthersForAMoment(t *testing.T) {
	q := newGatedQueue()
	q.patience = time.Millisecond
	q.calls.Go(func() { _ = q.share(t.Context(), &sentItem{}, q.send) })
	<-q.begun
	var others sync.WaitGroup
	for n := range 3 {
		others.Go(func() {
			if err := q.share(t.Context(), &sentItem{n: n + 1}, q.send); err != nil {
				t.Error(err)
			}
		})
	}
	others.Wait()
	close(q.proceed)
	q.calls.Wait()
}

// As many items as a statement serves do not wait for the one that runs.
func TestAFullGroupWaitsForNoOther(t *testing.T) {
	q := newGatedQueue()
	q.calls.Go(func() { _ = q.share(t.Context(), &sentItem{}, q.send) })
	<-q.begun
	var others sync.WaitGroup
	for n := range maxShared {
		others.Go(func() { _ = q.share(t.Context(), &sentItem{n: n + 1}, q.send) })
	}
	others.Wait()
	close(q.proceed)
	q.calls.Wait()
	if len(q.groups) != 2 || len(q.groups[1]) != maxShared || q.running != 0 {
		t.Errorf("the groups are %v, and %d run", q.groups, q.running)
	}
}

// The sender of a group panics: the others learn that their outcome is not known, and the queue goes on.
func TestItemsOfAPanickedSenderHaveNoOutcome(t *testing.T) {
	q := newGatedQueue()
	var failed atomic.Int64
	q.call(t.Context(), 0, func(error) {})
	send := func(_ context.Context, items []*sentItem) { panic(len(items)) }
	for n := range 2 {
		q.calls.Go(func() {
			defer func() {
				if recover() != nil {
					failed.Add(1)
				}
			}()
			if err := q.share(t.Context(), &sentItem{}, send); errors.Is(err, ErrUnknownOutcome) {
				failed.Add(1)
			}
		})
		for q.length() == n {
			runtime.Gosched()
		}
	}
	close(q.proceed)
	q.calls.Wait()
	if failed.Load() != 2 {
		t.Errorf("%d of 2 failed", failed.Load())
	}
	if err := q.share(t.Context(), &sentItem{}, q.send); err != nil {
		t.Error(err)
	}
}

// Many callers come and leave at once. Each item is sent once, or not at all if its call returned the end of its
// context; no group is too large; no call hangs; and nothing runs in the end.
func TestEachItemIsSentOnceOrItsCallerHasLeft(t *testing.T) {
	var q queue[*sentItem]
	q.patience = 50 * time.Microsecond
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var calls sync.WaitGroup
	for caller := range 100 {
		calls.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(caller)))
			for range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(3) == 0 {
					go cancel()
				}
				var item sentItem
				yields := r.IntN(20)
				err := q.share(ctx, &item, func(_ context.Context, items []*sentItem) {
					if len(items) > maxShared {
						t.Errorf("%d items share a statement", len(items))
					}
					for range yields {
						runtime.Gosched()
					}
					for _, item := range items {
						item.sent.Add(1)
					}
				})
				cancel()
				if n := item.sent.Load(); err == nil && n != 1 || err != nil && (n != 0 || !errors.Is(err, context.Canceled)) {
					t.Errorf("an item was sent %d times, and its call returned %v", n, err)
				}
			}
		})
	}
	calls.Wait()
	for { // a timer may still be passing on
		q.mu.Lock()
		running, waiting := q.running, len(q.waiting)
		q.mu.Unlock()
		if running == 0 && waiting == 0 {
			break
		}
		runtime.Gosched()
	}
}
