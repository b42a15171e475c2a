package ops

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// TestProgressThatChangesNothingIsNotCommitted wakes a worker that sees nothing new: a benchmark with 200 new clusters
// a second committed each such call, and a renewal of a fresh lease with it.
func TestProgressThatChangesNothingIsNotCommitted(t *testing.T) {
	called := make(chan struct{})
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p",
		Lease: 24 * time.Hour, Worker: workerFunc(func(context.Context, State) Outcome {
			called <- struct{}{}
			return Outcome{Event: Event{Kind: Progress, Phase: "Waits", Percent: 10}, Again: time.Hour}
		})})
	if err := accept(t.Context(), e, "a", order("op", "a")); err != nil {
		t.Fatal(err)
	}
	run(t, e)
	await := func() {
		t.Helper()
		select {
		case <-called:
		case <-time.After(testsite.HangLimit):
			t.Fatal("the worker was not called")
		}
	}
	await() // commits the phase
	e.Wake(scope, "a")
	await()
	before, err := e.o.Store.Get(t.Context(), Kind, "op")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if !e.Wake(scope, "a") {
			t.Error("Wake says that the process does not work on the operation")
		}
		await()
	}
	after, err := e.o.Store.Get(t.Context(), Kind, "op")
	if err != nil {
		t.Fatal(err)
	}
	if !after.SameState(before) {
		t.Errorf("calls of the worker that saw nothing new wrote %s after %s", after.Status, before.Status)
	}
	if e.Wake(scope, "another") {
		t.Error("Wake says that the process works on a resource without operation")
	}
}

// TestAChangeIsCommittedWithItsEvent commits a change of the resource together with progress, and neither when another
// process has taken the lease.
func TestAChangeIsCommittedWithItsEvent(t *testing.T) {
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p"})
	if err := accept(t.Context(), e, "a", order("op", "a")); err != nil {
		t.Fatal(err)
	}
	s, err := e.commit(t.Context(), "op", Event{Kind: Acquire, Holder: "p", For: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	changeTo := func(status string) func(context.Context, *store.Tx) error {
		return func(ctx context.Context, tx *store.Tx) error {
			_, _, err := tx.Update(ctx, thing, "a", 0, func(d *store.Document) error {
				d.Status = json.RawMessage(status)
				return nil
			})
			return err
		}
	}
	status := func() string {
		t.Helper()
		d, err := e.o.Store.Get(t.Context(), thing, "a")
		if err != nil {
			t.Fatal(err)
		}
		return string(d.Status)
	}
	stale := Event{Kind: Progress, Phase: "Stale", Fence: s.Fence - 1}
	if _, err := e.commitWith(t.Context(), "op", stale, changeTo(`{"by":"another"}`)); !errors.Is(err, ErrFenced) {
		t.Errorf("an event of an earlier lease: %v", err)
	}
	if got := status(); got != `{"busy": true}` {
		t.Errorf("an event of an earlier lease changed the thing to %s", got)
	}
	now := Event{Kind: Progress, Phase: "Now", Fence: s.Fence}
	if after, err := e.commitWith(t.Context(), "op", now, changeTo(`{"by":"me"}`)); err != nil || after.Phase != "Now" {
		t.Errorf("%+v, %v", after, err)
	}
	if got := status(); got != `{"by": "me"}` {
		t.Errorf("the thing has %s", got)
	}
}
