package backup

import (
	"context"
	"sync"
)

// getter is the part of a Store that reads objects.
type getter interface {
	Get(ctx context.Context, name string) ([]byte, error)
}

// aheadBy is how many objects a restore reads at once. A store in a cloud answers each request after tens of
// milliseconds, and a chain has hundreds of objects.
const aheadBy = 4

// ahead is a getter that reads objects before they are asked for, in the order in which they will be. It reads another
// object than the next one when it is asked for. One goroutine may use it; close ends it.
type ahead struct {
	store   getter
	ctx     context.Context // of the reads
	cancel  context.CancelFunc
	names   []string     // whose reads have not begun, in order
	begun   []*earlyRead // in order; at most aheadBy
	running sync.WaitGroup
}

// earlyRead is the read of one object.
type earlyRead struct {
	name    string
	done    chan struct{} // closed when content and err are set
	content []byte
	err     error
}

func newAhead(ctx context.Context, store getter, names []string) *ahead {
	a := &ahead{store: store, names: names}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// close ends the reads that were begun, and returns when they have ended.
func (a *ahead) close() {
	a.cancel()
	a.running.Wait()
}

// Get returns an object, as Store.Get does.
func (a *ahead) Get(ctx context.Context, name string) ([]byte, error) {
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
	a.begun = append(a.begun[:0:0], a.begun[1:]...)
	a.begin()
	return first.content, first.err
}

// begin begins reads, until aheadBy were begun.
func (a *ahead) begin() {
	for len(a.begun) < aheadBy && len(a.names) > 0 {
		r := &earlyRead{name: a.names[0], done: make(chan struct{})}
		a.names, a.begun = a.names[1:], append(a.begun, r)
		a.running.Go(func() {
			defer close(r.done)
			r.content, r.err = a.store.Get(a.ctx, r.name)
		})
	}
}
