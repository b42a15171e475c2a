package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func (f workerFunc) Work(ctx context.Context, s State) Outcome { return f(ctx, s) }

// TestI5I12AKillBetweenAnyTwoStatementsLeavesNoResourceBusy kills a process at each of its statements, from
// the acceptance of an operation to its end: before the server gets the statement and after. Then a
// thing exists exactly if its operation does, and another process ends the operation.
func TestI5I12AKillBetweenAnyTwoStatementsLeavesNoResourceBusy(t *testing.T) {
	dsn := pgtest.DSN(t)
	healthy := open(t, dsn, store.Hooks{})
	later := func() time.Time { return time.Now().Add(time.Minute) } // leases of the killed process have expired
	rescue := NewEngine(Options{Store: healthy, Worker: workerFunc(succeed), RecordEnd: recordEnd, Holder: "rescue",
		Now: later})
	run(t, rescue)
	kills, accepted := 0, 0
	for _, after := range []bool{false, true} {
		for left := 0; ; left++ {
			name := fmt.Sprintf("thing-%t-%d", after, left)
			id := "op-" + name
			ctx, cancel := context.WithCancel(t.Context())
			process := pgtest.NewKillableProcess(left, pgtest.KillMoment(after), cancel)
			s := open(t, dsn, store.Hooks{Dial: process.Dial})
			e := NewEngine(Options{Store: s, RecordEnd: recordEnd, Holder: name})
			process.CountStatements()
			err := accept(ctx, e, name, order(id, name))
			for _, event := range []Event{{Kind: Acquire, Holder: name, For: time.Second}, {Kind: Progress, Percent: 50,
				Fence: 1}, {Kind: Succeed, Fence: 1}} {
				if err == nil {
					_, err = e.commit(ctx, id, event)
				}
			}
			killed := process.IsKilled()
			cancel()
			s.Close()
			_, opErr := healthy.Get(t.Context(), Kind, id)
			_, thingErr := healthy.Get(t.Context(), thing, name)
			if (opErr == nil) != (thingErr == nil) {
				t.Fatalf("killed at statement %d: the operation: %v; the thing: %v", left, opErr, thingErr)
			}
			if opErr == nil {
				accepted++
				awaitEnd(t, rescue, id)
				if isBusy(t, healthy, name) {
					t.Errorf("killed at statement %d: the thing is busy, and its operation has ended", left)
				}
			} else if !errors.Is(opErr, store.ErrNotFound) {
				t.Fatal(opErr)
			}
			if !killed {
				// The rescue may hold the operation, or have ended it, since its clock is ahead.
				if err != nil && !errors.Is(err, ErrEnded) && !errors.Is(err, ErrFenced) && !errors.Is(err, ErrLeased) {
					t.Fatalf("nobody killed the process: %v", err)
				}
				break
			}
			kills++
		}
	}
	if kills < 8 || accepted < 5 {
		t.Errorf("%d kills, and %d accepted operations: the test misses statements", kills, accepted)
	}
}

// TestAResourceHasOneActiveOperation begins operations of one resource from two processes at once.
func TestAResourceHasOneActiveOperation(t *testing.T) {
	dsn := pgtest.DSN(t)
	engines := []*Engine{NewEngine(Options{Store: open(t, dsn, store.Hooks{})}),
		NewEngine(Options{Store: open(t, dsn, store.Hooks{})})}
	begin := func(e *Engine, id string) error {
		return e.o.Store.Tx(t.Context(), func(tx *store.Tx) error {
			_, err := e.Begin(t.Context(), tx, order(id, "r"))
			return err
		})
	}
	for round := range 10 {
		var won atomic.Int32
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				err := begin(engines[i%2], fmt.Sprintf("op-%d-%d", round, i))
				busy, refused := errors.AsType[*BusyError](err)
				switch {
				case err == nil:
					won.Add(1)
				case refused && busy.Active.Resource == "r":
				case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrExists):
				default:
					t.Errorf("begin: %v", err)
				}
			})
		}
		group.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d operations were accepted", won.Load())
		}
		active, err := engines[0].Active(t.Context(), engines[1].o.Store, scope, "r")
		if err != nil {
			t.Fatal(err)
		}
		// A later request takes the place of the active operation in one transaction.
		err = engines[1].o.Store.Tx(t.Context(), func(tx *store.Tx) error {
			if _, err := engines[1].Supersede(t.Context(), tx, scope, "r", &Error{Code: "Canceled"}); err != nil {
				return err
			}
			_, err := engines[1].Begin(t.Context(), tx, order(fmt.Sprint("delete-", round), "r"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := engines[0].Get(t.Context(), active.ID); err != nil || s.Status != Canceled {
			t.Errorf("the superseded operation: %+v, %v", s, err)
		}
		err = engines[0].o.Store.Tx(t.Context(), func(tx *store.Tx) error {
			_, err := engines[0].Supersede(t.Context(), tx, scope, "r", &Error{Code: "Canceled"})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestTwoProcessesEndEachOperationOnce runs two engines on one database. Each operation fails once,
// and its resource is freed once.
func TestTwoProcessesEndEachOperationOnce(t *testing.T) {
	dsn := pgtest.DSN(t)
	var engines []*Engine
	for i := range 2 {
		engines = append(engines, NewEngine(Options{Store: open(t, dsn, store.Hooks{}), Holder: fmt.Sprint("p", i),
			Worker: workerFunc(func(_ context.Context, s State) Outcome {
				if s.Attempts == 0 {
					return Outcome{Event: Event{Kind: Retry, Error: &Error{Code: "Down", Message: "it is down"}}}
				}
				return Outcome{Event: Event{Kind: Succeed, Result: json.RawMessage(`{"a":1}`)}}
			}),
			RecordEnd: func(ctx context.Context, tx *store.Tx, s State) error { // counts what is committed
				_, _, err := tx.Update(ctx, thing, s.Resource, 0, func(d *store.Document) error {
					var status struct{ Settled int }
					if err := json.Unmarshal(d.Status, &status); err != nil {
						return err
					}
					d.Status = fmt.Appendf(nil, `{"busy":false,"settled":%d}`, status.Settled+1)
					return nil
				})
				return err
			}}))
	}
	const n = 10
	for i := range n {
		name := fmt.Sprint("thing-", i)
		if err := accept(t.Context(), engines[i%2], name, order("op-"+name, name)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, engines[0])
	run(t, engines[1])
	for i := range n {
		name := fmt.Sprint("thing-", i)
		s := awaitEnd(t, engines[0], "op-"+name)
		if s.Status != Succeeded || string(s.Result) != `{"a": 1}` || s.Lease != nil ||
			isBusy(t, engines[0].o.Store, name) {
			t.Errorf("%s: %+v", name, s)
		}
		d, err := engines[0].o.Store.Get(t.Context(), thing, name)
		if err != nil || !strings.Contains(string(d.Status), `"settled": 1`) {
			t.Errorf("%s was not settled once: %s, %v", name, d.Status, err)
		}
	}
}

// TestAWakeCallsTheWorkerAndACancelEndsItsWork wakes a waiting worker, then cancels the operation.
func TestAWakeCallsTheWorkerAndACancelEndsItsWork(t *testing.T) {
	calls := make(chan int64, 100)
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p",
		Worker: workerFunc(func(_ context.Context, s State) Outcome {
			calls <- s.Fence
			return Outcome{Event: Event{Kind: Progress, Phase: "Waits", Percent: 10}, Again: time.Hour}
		})})
	if err := accept(t.Context(), e, "a", order("op", "a")); err != nil {
		t.Fatal(err)
	}
	stop := run(t, e)
	next := func() {
		select {
		case <-calls:
		case <-time.After(testsite.HangLimit):
			t.Fatal("the worker was not called")
		}
	}
	next()
	e.Wake(scope, "a")
	next()
	if err := accept(t.Context(), e, "b", order("op2", "a")); err == nil {
		t.Error("a busy resource got a second operation")
	}
	if s, err := e.Cancel(t.Context(), "op", &Error{Code: "Canceled"}); err != nil || s.Status != Canceled {
		t.Fatalf("cancel: %+v, %v", s, err)
	}
	if isBusy(t, e.o.Store, "a") {
		t.Error("the resource of a canceled operation is busy")
	}
	testsite.Eventually(t, "the engine holds nothing", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.tasks) > 0 {
			return errors.New("it has a task")
		}
		return nil
	})
	stop()
}

// TestAStoppedProcessGivesItsLeasesUp stops one engine while it works; the other continues before the
// lease would have expired.
func TestAStoppedProcessGivesItsLeasesUp(t *testing.T) {
	dsn := pgtest.DSN(t)
	working := make(chan struct{}, 1)
	first := NewEngine(Options{Store: open(t, dsn, store.Hooks{}), Holder: "first", Lease: 24 * time.Hour,
		Worker: workerFunc(func(ctx context.Context, _ State) Outcome {
			working <- struct{}{}
			<-ctx.Done()
			return Outcome{Event: Event{Kind: Fail, Error: &Error{Code: "Stopped"}}}
		})})
	if err := accept(t.Context(), first, "a", order("op", "a")); err != nil {
		t.Fatal(err)
	}
	stop := run(t, first)
	<-working
	stop()
	second := NewEngine(Options{Store: open(t, dsn, store.Hooks{}), RecordEnd: recordEnd, Holder: "second",
		Worker: workerFunc(succeed)})
	run(t, second)
	if s := awaitEnd(t, second, "op"); s.Status != Succeeded || s.Fence != 2 {
		t.Errorf("%+v", s)
	}
}

// TestRenewalsLeaveNoRecord checks that a renewed lease is no change: no version, no record, no wake.
func TestRenewalsLeaveNoRecord(t *testing.T) {
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p"})
	if err := accept(t.Context(), e, "a", order("op", "a")); err != nil {
		t.Fatal(err)
	}
	var versions []int64
	var fence int64
	for _, event := range []Event{{Kind: Acquire, Holder: "p", For: time.Hour}, {Kind: Renew, For: 2 * time.Hour},
		{Kind: Renew, For: 3 * time.Hour}} {
		event.Fence = fence
		s, err := e.commit(t.Context(), "op", event)
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.o.Store.Get(t.Context(), Kind, "op")
		if err != nil {
			t.Fatal(err)
		}
		fence, versions = s.Fence, append(versions, d.Version)
	}
	if !slices.Equal(versions, []int64{2, 2, 2}) {
		t.Errorf("versions after taking the lease and renewing it: %v", versions)
	}
}
