package ops

import (
	"context"
	"fmt"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

var gateStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestSlowRequestsHoldStepsBack sends requests for some windows, and compares the limit after each.
func TestSlowRequestsHoldStepsBack(t *testing.T) {
	now, p := gateStart, newPace(gateStart)
	scopes := 0
	scope := func() string { scopes++; return fmt.Sprint("s", scopes%20) }
	window := func(fast, slow int) int {
		for range fast {
			p = p.observe(scope(), slowRequest/4, now)
		}
		for range slow {
			p = p.observe(scope(), slowRequest*2, now)
		}
		now = now.Add(paceWindow)
		p = p.observe(scope(), slowRequest/4, now)
		return p.limit
	}
	for n, want := range []int{8, 4, 2, 2} {
		if got := window(10, 5); got != want {
			t.Errorf("slow window %d: a limit of %d, want %d", n, got, want)
		}
	}
	for n, want := range []int{3, 4, 5} {
		if got := window(100, 5); got != want { // 5 of 106 are one of 20 at most
			t.Errorf("fast window %d: a limit of %d, want %d", n, got, want)
		}
	}
	if p = p.withoutRequests(now.Add(quietTime - 1)); p.limit != 5 {
		t.Errorf("a limit of %d before the quiet time", p.limit)
	}
	if p = p.withoutRequests(now.Add(quietTime)); p.limit != mostSteps {
		t.Errorf("a limit of %d after the quiet time, want %d", p.limit, mostSteps)
	}
}

// TestOneScopeDoesNotHoldAllOperationsUp sends slow requests of one scope in each window: beside fast ones of others
// the limit grows, and alone they take half of the limit at most. Slow requests of all scopes count.
func TestOneScopeDoesNotHoldAllOperationsUp(t *testing.T) {
	now, p := gateStart, newPace(gateStart)
	p.limit = fewestSteps
	window := func(slow int, fastScopes ...string) int {
		for range slow {
			p = p.observe("slow", time.Minute, now)
		}
		for _, s := range fastScopes {
			p = p.observe(s, slowRequest/4, now)
		}
		now = now.Add(paceWindow)
		p = p.observe("slow", time.Minute, now)
		return p.limit
	}
	for want := fewestSteps + 1; want <= mostSteps; want++ {
		if got := window(10, "b"); got != want {
			t.Fatalf("a limit of %d beside a fast request of another scope, want %d", got, want)
		}
	}
	for n, want := range []int{8, 8, 8} {
		if got := window(10); got != want {
			t.Errorf("window %d of one scope: a limit of %d, want %d", n, got, want)
		}
	}
	for n, want := range []int{4, 2} {
		p = p.observe("b", slowRequest*2, now)
		if got := window(1); got != want {
			t.Errorf("window %d of two slow scopes: a limit of %d, want %d", n, got, want)
		}
	}
	if got := window(10); got != fewestSteps+1 {
		t.Errorf("one slow scope after many: a limit of %d", got)
	}
}

// isReady reports whether a turn is ready.
func isReady(t *turn) bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// narrowGate returns a gate that permits the fewest steps at once.
func narrowGate() *gate {
	g := newGate(gateStart)
	g.pace.limit = fewestSteps
	return g
}

// TestStepsThatContinueGoFirst lets steps of both stages wait, and gives turns back one by one.
func TestStepsThatContinueGoFirst(t *testing.T) {
	g := narrowGate()
	first, second := g.join(beginning, gateStart), g.join(beginning, gateStart)
	if !isReady(first) || !isReady(second) {
		t.Fatal("the gate has room for two")
	}
	waiting := map[*turn]string{}
	names := [2][]string{{"b0", "b1", "b2"}, {"c0", "c1", "c2", "c3", "c4", "c5"}}
	for of, list := range names {
		for _, name := range list {
			waiting[g.join(stage(of), gateStart)] = name
		}
	}
	g.leave(first)
	var order []string
	for len(waiting) > 0 {
		var ready *turn
		for candidate := range waiting {
			if isReady(candidate) {
				if ready != nil {
					t.Fatalf("after %v two turns are ready", order)
				}
				ready = candidate
			}
		}
		if ready == nil {
			t.Fatalf("after %v no turn is ready", order)
		}
		order = append(order, waiting[ready])
		delete(waiting, ready)
		g.leave(ready)
	}
	want := []string{"c0", "c1", "c2", "b0", "c3", "c4", "c5", "b1", "b2"}
	for n := range want {
		if order[n] != want[n] {
			t.Fatalf("the order is %v, want %v", order, want)
		}
	}
}

// TestATurnThatIsNotUsedGoesToTheNext gives turns back before they are ready, and after.
func TestATurnThatIsNotUsedGoesToTheNext(t *testing.T) {
	g := narrowGate()
	held := []*turn{g.join(continuing, gateStart), g.join(beginning, gateStart)}
	canceled, next := g.join(continuing, gateStart), g.join(continuing, gateStart)
	g.leave(canceled)
	g.leave(held[0])
	if isReady(canceled) || !isReady(next) {
		t.Error("the turn of a step that does not wait any more is not the next one's")
	}
	g.leave(next)
	g.leave(held[1])
	if g.running != 0 || len(g.waiting[beginning])+len(g.waiting[continuing]) != 0 {
		t.Errorf("%d run, %v wait", g.running, g.waiting)
	}
}

// TestStepsThatHangDelayNoOther lets more calls of the worker hang than the gate has places, and expects that another
// operation ends.
func TestStepsThatHangDelayNoOther(t *testing.T) {
	hanging := make(chan struct{}, mostSteps)
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p",
		Lease: time.Hour,
		Worker: workerFunc(func(ctx context.Context, s State) Outcome {
			if s.Resource == "other" {
				return succeed(ctx, s)
			}
			hanging <- struct{}{}
			<-ctx.Done()
			return Outcome{Event: Event{Kind: Progress}}
		})})
	for n := range mostSteps {
		name := fmt.Sprint("hangs", n)
		if err := accept(t.Context(), e, name, order("op of "+name, name)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, e)
	for range mostSteps {
		<-hanging
	}
	if err := accept(t.Context(), e, "other", order("op", "other")); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, e, "op")
}
