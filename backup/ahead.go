package backup

import (
	"context"
	"errors"
	"sync"
)

// getter is the part of a Store that reads objects.
type getter interface {
	Get(ctx context.Context, name string) ([]byte, error)
}

// aheadBy is how many objects a readAhead reads at the same time, at most. A store in a cloud answers each request
// after tens of milliseconds, and a chain has hundreds of objects.
const aheadBy = 4

// readAhead is a getter that reads objects in a known order, before its caller asks for them. When the caller asks
// for an object that is not the next one, readAhead reads that object from the store, and keeps the others. Only one
// goroutine may call its methods. The caller must call close.
type readAhead struct {
	store   getter
	ctx     context.Context // of the reads
	cancel  context.CancelFunc
	waiting []string     // names of objects whose reads have not begun, in order
	begun   []*earlyRead // reads whose results Get has not returned, in order; at most aheadBy
	running sync.WaitGroup
}

// earlyRead is the read of one object.
type earlyRead struct {
	name    string
	done    chan struct{} // closed when content and err are set
	content []byte
	err     error
}

func newReadAhead(ctx context.Context, store getter, names []string) *readAhead {
	a := &readAhead{store: store, waiting: names}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// close cancels the reads that have begun, and returns when all have ended.
func (a *readAhead) close() {
	a.cancel()
	a.running.Wait()
}

// Get returns an object, as Store.Get does. The end of ctx ends only the waiting for a read that has begun before.
// After an error of such a read, Get reads the object once more, and from then on one object at a time.
func (a *readAhead) Get(ctx context.Context, name string) ([]byte, error) {
	a.begin()
	if len(a.begun) == 0 || a.begun[0].name != name {
		return a.store.Get(ctx, name)
	}
	first := a.begun[0]
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-first.done:
	}
	if first.err != nil && !errors.Is(first.err, ErrNotFound) && ctx.Err() == nil {
		// The connection may be too slow for several reads, each of which has a time limit. The rest is read one by one.
		a.close()
		a.waiting, a.begun = nil, nil
		return a.store.Get(ctx, name)
	}
	a.begun = append(a.begun[:0:0], a.begun[1:]...)
	a.begin()
	return first.content, first.err
}

// begin begins the next reads, so that aheadBy reads have begun whose results Get has not returned.
func (a *readAhead) begin() {
	for len(a.begun) < aheadBy && len(a.waiting) > 0 {
		r := &earlyRead{name: a.waiting[0], done: make(chan struct{})}
		a.waiting, a.begun = a.waiting[1:], append(a.begun, r)
		a.running.Go(func() {
			defer close(r.done)
			r.content, r.err = a.store.Get(a.ctx, r.name)
		})
	}
}
