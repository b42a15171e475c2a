package adapter

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/bus"
)

type runnerFunc func(context.Context, Event) *Result

func (f runnerFunc) Run(ctx context.Context, e Event) *Result { return f(ctx, e) }

// The worker acknowledges an event when it is queued, before its run; a malformed event, too.
func TestEventsAreAcknowledgedWhenTheyAreQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, end := make(chan Event, 10), make(chan bool)
		w := NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Engine: runnerFunc(
			func(_ context.Context, e Event) *Result {
				began <- e
				<-end
				return &Result{}
			})})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { w.pool.Run(ctx) })
		acked := 0
		for _, data := range []string{"", "{", `{"kind":"Cluster"}`, `{"id":"x","generation":2}`} {
			w.take(ctx, bus.Message{Event: bus.Event{Data: []byte(data)}, Ack: func() { acked++ }})
		}
		synctest.Wait()
		if acked != 4 || len(began) != 1 {
			t.Fatalf("%d acknowledged, %d begun", acked, len(began))
		}
		if e := <-began; e != (Event{ID: "x", Generation: 2}) {
			t.Errorf("%+v", e)
		}
		close(end)
		cancel()
		done.Wait()
	})
}

// A panic is one resource's failure, not the process's.
func TestAPanicIsAFailedRun(t *testing.T) {
	for name, c := range map[string]struct {
		run      func() *Result
		wantText string
	}{
		"a panic":   {func() *Result { panic("boom") }, "panicked: boom"},
		"no result": {func() *Result { return nil }, "no result"},
		"an error": {func() *Result { return &Result{Errors: map[Phase]error{Resources: errors.New("bang")}} },
			"bang"},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Engine: runnerFunc(
				func(context.Context, Event) *Result { return c.run() })})
			if _, err := w.execute(t.Context(), Event{ID: "x"}); err == nil ||
				!strings.Contains(err.Error(), c.wantText) {
				t.Errorf("%v, want %q", err, c.wantText)
			}
			if w.run(t.Context(), of("x", 1)) != failed {
				t.Error("it did not fail")
			}
		})
	}
}

// A run that hangs is ended, and fails.
func TestARunHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Engine: runnerFunc(
			func(ctx context.Context, _ Event) *Result {
				<-ctx.Done()
				return &Result{Errors: map[Phase]error{Resources: context.Cause(ctx)}}
			})})
		begun := time.Now()
		if _, err := w.execute(t.Context(), Event{ID: "x"}); err == nil || !strings.Contains(err.Error(),
			"longer than 5m") || time.Since(begun) != 5*time.Minute {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// Another controller changes an object back during each run. Pauses slow the fight down, also when
// the runs fail because of another step of the task. Runs that fail and write nothing do not fight:
// only the interval separates them.
func TestFailedRunsOfAContestedObjectAreSpaced(t *testing.T) {
	errs := map[Phase]error{PostActions: errors.New("no answer")}
	updated := []ResourceResult{{Operation: Updated}}
	const period = 10 * time.Minute
	for name, c := range map[string]struct {
		result      Result
		least, most int // runs in the period
	}{
		"runs that write and succeed": {Result{Resources: updated}, 20, 200},
		"runs that write and fail":    {Result{Resources: updated, Errors: errs}, 20, 200},
		"runs that fail": {Result{Resources: []ResourceResult{{Operation: Skipped}}, Errors: errs},
			int(period/changeInterval) - 2*promptChanges, int(period/changeInterval) + 2*promptChanges},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w *Worker
				runs := 0
				w = NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Engine: runnerFunc(
					func(context.Context, Event) *Result {
						runs++
						w.enqueue(hint{task: of("x", 1), watched: true})
						return &c.result
					})})
				ctx, cancel := context.WithCancel(t.Context())
				var done sync.WaitGroup
				done.Go(func() { w.pool.Run(ctx) })
				w.enqueue(hint{task: of("x", 1)})
				<-time.After(period)
				synctest.Wait()
				cancel()
				done.Wait()
				if runs < c.least || runs > c.most {
					t.Errorf("%d runs in %s, want %d to %d", runs, period, c.least, c.most)
				}
			})
		})
	}
}

// A work's status changes eleven times while its control plane stops, and once more when the plane has stopped. The
// run for the last change begins when the change comes, because the runs before it wrote nothing. A worker whose runs
// write each time pauses: another writer changes the object back.
func TestTheLastStatusOfAStoppingPlaneIsReportedAtOnce(t *testing.T) {
	for operation, latest := range map[Operation]time.Duration{Skipped: 0, Updated: longestRepairPause} {
		t.Run(string(operation), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var begun time.Time
				w := NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Engine: runnerFunc(
					func(context.Context, Event) *Result {
						begun = time.Now()
						return &Result{Resources: []ResourceResult{{Operation: operation}}}
					})})
				ctx, cancel := context.WithCancel(t.Context())
				var done sync.WaitGroup
				done.Go(func() { w.pool.Run(ctx) })
				change := func() { w.enqueue(hint{task: of("x", 1), watched: true}) }
				for range 30 {
					change()
					<-time.After(time.Second)
				}
				change()
				last := time.Now()
				<-time.After(longestRepairPause)
				synctest.Wait()
				if wait := begun.Sub(last); wait < 0 || wait > latest || latest > 0 && wait == 0 {
					t.Errorf("the run began %s after the change, want at most %s", wait, latest)
				}
				cancel()
				done.Wait()
			})
		})
	}
}
