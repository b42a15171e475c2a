package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// thing is the kind of the resources of these tests. Its status is {"busy":"OPERATION"} or {}.
const thing store.Kind = "Thing"

const (
	scope = "s"
	busy  = `{"busy":true}`
	free  = `{"busy":false}`
)

func open(t testing.TB, dsn string, hooks store.Hooks) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, Kinds: []store.KindSpec{{Kind: thing}, StoreKind()},
		Hooks: hooks, AcquireTimeout: time.Minute, ResolveTimeout: 100 * time.Millisecond}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func order(id, resource string) Order {
	return Order{ID: id, Scope: scope, Resource: resource, Request: "Create", Budget: time.Hour}
}

// accept creates a thing together with its operation.
func accept(ctx context.Context, e *Engine, name string, o Order) error {
	return e.o.Store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Create(ctx, store.Document{Kind: thing, ID: name, Scope: scope, Spec: json.RawMessage(`{}`),
			Status: json.RawMessage(busy)}); err != nil {
			return err
		}
		_, err := e.Begin(ctx, tx, o)
		return err
	})
}

// recordEnd frees the thing of an operation.
func recordEnd(ctx context.Context, tx *store.Tx, s State) error {
	_, _, err := tx.Update(ctx, thing, s.Resource, 0, func(d *store.Document) error {
		d.Status = json.RawMessage(free)
		return nil
	})
	return err
}

func isBusy(t testing.TB, s *store.Store, name string) bool {
	t.Helper()
	d, err := s.Get(t.Context(), thing, name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(d.Status), "true")
}

type workerFunc func(context.Context, State) Outcome

func succeed(context.Context, State) Outcome { return Outcome{Event: Event{Kind: Succeed}} }

// run runs an engine until the end of the test, or until stop.
func run(t testing.TB, e *Engine) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

func awaitEnd(t testing.TB, e *Engine, id string) (s State) {
	t.Helper()
	testsite.Eventually(t, "the operation "+id+" ends", func() (err error) {
		if s, err = e.Get(t.Context(), id); err == nil && !s.Status.IsTerminal() {
			err = fmt.Errorf("it is %s", s.Status)
		}
		return err
	})
	return s
}
