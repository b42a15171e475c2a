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

// An event is acknowledged when it is queued, before it is run; one that cannot
// be read is, too.
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
		run  func() *Result
		says string
	}{
		"a panic":   {func() *Result { panic("boom") }, "panicked: boom"},
		"no result": {func() *Result { return nil }, "no result"},
		"an error": {func() *Result { return &Result{Errors: map[Phase]error{Resources: errors.New("bang")}} },
			"bang"},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWorker(WorkerOptions{Name: "a", Topic: "clusters", Engine: runnerFunc(
				func(context.Context, Event) *Result { return c.run() })})
			if _, err := w.execute(t.Context(), Event{ID: "x"}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
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
