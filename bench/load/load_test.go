package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAtRateStartsCallsOnTimeAlthoughEachIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		took, err := AtRate(t.Context(), 5, 2, func(i int) error {
			if at := time.Since(begun); at != time.Duration(i)*time.Second/2 {
				t.Errorf("call %d began after %s", i, at)
			}
			<-time.After(time.Minute)
			return nil
		})
		if err != nil || len(took) != 5 {
			t.Fatalf("%v, %v", took, err)
		}
		for i, d := range took {
			if d != time.Minute {
				t.Errorf("call %d took %s", i, d)
			}
		}
	})
}

func TestAtRateReturnsTheFirstErrorAndMakesAllCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := errors.New("first")
		var calls atomic.Int32
		_, err := AtRate(t.Context(), 3, 1, func(i int) error {
			calls.Add(1)
			switch i {
			case 1:
				return first
			case 2:
				return errors.New("second")
			}
			return nil
		})
		if !errors.Is(err, first) || calls.Load() != 3 {
			t.Errorf("%v after %d calls", err, calls.Load())
		}
	})
}

func TestAtRateStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		var calls atomic.Int32
		_, err := AtRate(ctx, 100, 1, func(int) error { calls.Add(1); return nil })
		if !errors.Is(err, context.DeadlineExceeded) || calls.Load() != 2 {
			t.Errorf("%v after %d calls", err, calls.Load())
		}
	})
}
