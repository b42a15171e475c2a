package store_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"atoll.dev/store"
)

// patience limits each wait of a test; only a hang exceeds it.
const patience = 3 * time.Minute

// watcher follows a store and keeps the received documents. It fails the test if a version goes
// back or repeats.
type watcher struct {
	t      testing.TB
	stop   context.CancelFunc
	done   chan struct{}
	strict bool // versions must not come twice

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each batch
	docs    map[string]store.Document
	seen    map[string]int64 // versions, of removed documents, too
	listed  map[string]bool
	batches int
	relists int
	cursor  store.Cursor
	err     error
}

func follow(t testing.TB, s *store.Store, o store.FollowOptions) *watcher {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w := &watcher{t: t, stop: stop, done: make(chan struct{}), strict: true, changed: make(chan struct{}),
		docs: map[string]store.Document{}, seen: map[string]int64{}}
	go func() {
		err := s.Follow(ctx, o, w.apply)
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		close(w.done)
	}()
	t.Cleanup(w.halt)
	return w
}

func (w *watcher) halt() {
	w.stop()
	<-w.done
}

func (w *watcher) apply(ctx context.Context, b store.Batch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.Relist && b.First {
		w.listed = map[string]bool{}
		w.relists++
	}
	for _, d := range b.Documents {
		key := string(d.Kind) + "/" + d.ID
		before := w.seen[key]
		switch {
		case b.Relist && (before < 0 || d.Version == before):
		case d.Version < before:
			w.t.Errorf("%s went back from version %d to %d", key, before, d.Version)
		case d.Version == before && w.strict:
			w.t.Errorf("%s came twice with version %d", key, d.Version)
		}
		w.seen[key] = d.Version
		if d.Removed {
			delete(w.docs, key)
		} else {
			w.docs[key] = d
		}
		if b.Relist {
			w.listed[key] = true
		}
	}
	if b.Relist && b.Last {
		maps.DeleteFunc(w.docs, func(key string, _ store.Document) bool { return !w.listed[key] })
	}
	w.batches++
	w.cursor = b.Cursor
	close(w.changed)
	w.changed = make(chan struct{})
	return nil
}

// until waits until the condition holds for the watcher's documents.
func (w *watcher) until(what string, cond func(docs map[string]store.Document) bool) {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		ok, changed := cond(w.docs), w.changed
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-w.done:
			w.t.Fatalf("waiting until %s: following ended: %v", what, w.err)
		case <-timeout:
			w.t.Fatalf("waiting until %s: nothing came", what)
		}
	}
}

func (w *watcher) has(key string, version int64) {
	w.t.Helper()
	w.until(key+" has come", func(docs map[string]store.Document) bool { return docs[key].Version >= version })
}

func (w *watcher) lacks(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.docs[key]
	return !ok
}

// held is a transaction that stays open until the test ends it.
type held struct {
	end  chan error
	done chan error
}

var errRollback = errors.New("roll back")

// hold runs f in a transaction and returns when f is done and the transaction still open.
func hold(t testing.TB, s *store.Store, f func(tx *store.Tx) error) *held {
	t.Helper()
	h := &held{end: make(chan error, 1), done: make(chan error, 1)}
	ready := make(chan error, 1)
	go func() {
		h.done <- s.Tx(context.Background(), func(tx *store.Tx) error {
			err := f(tx)
			ready <- err
			if err != nil {
				return err
			}
			return <-h.end
		})
	}()
	select {
	case err := <-ready:
		if err != nil {
			t.Fatal(err)
		}
	case err := <-h.done:
		t.Fatalf("the transaction did not begin: %v", err)
	}
	return h
}

func (h *held) commit(t testing.TB) {
	t.Helper()
	h.end <- nil
	if err := <-h.done; err != nil {
		t.Fatal(err)
	}
}

func (h *held) rollback(t testing.TB) {
	t.Helper()
	h.end <- errRollback
	if err := <-h.done; !errors.Is(err, errRollback) {
		t.Fatal(err)
	}
}
