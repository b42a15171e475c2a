package local

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// sleepWithin waits for d, as work on a slow machine does, or until ctx ends.
func sleepWithin(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// TestASlowMachineStartsAProcess: a process whose readiness takes 7 s to answer and whose
// Finish takes 20 s serves, with Finish called once.
func TestASlowMachineStartsAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		finished := 0
		spec := Spec{Name: "slow",
			Ready: func(ctx context.Context) error { return sleepWithin(ctx, 7*time.Second) },
			Finish: func(ctx context.Context) error {
				finished++
				return sleepWithin(ctx, 20*time.Second)
			},
		}
		if !new(supervisor).awaitServing(ctx, spec, make(chan error, 1)) {
			t.Fatal("the process never serves")
		}
		if finished != 1 {
			t.Errorf("Finish was called %d times", finished)
		}
	})
}

// TestAProcessThatEndsIsNotAwaited: the wait for a process ends with it.
func TestAProcessThatEndsIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exited := make(chan error, 1)
		exited <- nil
		spec := Spec{Name: "ended", Ready: func(context.Context) error { return context.DeadlineExceeded }}
		if new(supervisor).awaitServing(t.Context(), spec, exited) {
			t.Error("the process serves")
		}
		if len(exited) != 1 {
			t.Error("the end of the process is lost")
		}
	})
}

// TestAProcessThatEndsDuringAProbeIsNotAwaited: a probe or a Finish that hangs ends with the process.
func TestAProcessThatEndsDuringAProbeIsNotAwaited(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, spec := range []Spec{
		{Name: "probe", Ready: hang},
		{Name: "finish", Ready: func(context.Context) error { return nil }, Finish: hang},
	} {
		synctest.Test(t, func(t *testing.T) {
			exited := make(chan error, 1)
			time.AfterFunc(100*time.Millisecond, func() { exited <- nil })
			start := time.Now()
			if new(supervisor).awaitServing(t.Context(), spec, exited) {
				t.Errorf("%s: the process serves", spec.Name)
			}
			if took := time.Since(start); took != 100*time.Millisecond || len(exited) != 1 {
				t.Errorf("%s: noticed after %s; the end is kept: %t", spec.Name, took, len(exited) == 1)
			}
		})
	}
}
