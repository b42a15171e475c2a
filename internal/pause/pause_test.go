package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestForWaitsForTheTimeOrTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(begun) != time.Minute {
			t.Errorf("a pause of a minute ended after %s", time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		if For(ctx, time.Minute) || time.Since(begun) != time.Second {
			t.Errorf("a pause whose context ended after a second ended after %s", time.Since(begun))
		}
	})
}

func TestForWakeWaitsForTheWakeUpTheTimeOrTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		passed := func(what string, want time.Duration) {
			t.Helper()
			if took := time.Since(begun); took != want {
				t.Errorf("%s: the pause ended after %s, want %s", what, took, want)
			}
			begun = time.Now()
		}
		woken := make(chan struct{}, 1)
		ForWake(t.Context(), woken, time.Minute)
		passed("the time", time.Minute)
		time.AfterFunc(time.Second, func() { woken <- struct{}{} })
		ForWake(t.Context(), woken, time.Minute)
		passed("the wake-up", time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ForWake(ctx, woken, 0)
		passed("the end of the context, without a limit", time.Hour)
	})
}
