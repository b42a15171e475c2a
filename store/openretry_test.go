package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestOpenRepeatsItsStepsWhileTheDatabaseIsUnavailable(t *testing.T) {
	unavailable := fmt.Errorf("connecting: %w", ErrUnavailable)
	for _, c := range []struct {
		name     string
		answers  []error // the last one is repeated
		want     error
		calls    int
		duration time.Duration
	}{
		{"it answers at once", []error{nil}, nil, 1, 0},
		{"it answers at the third attempt", []error{unavailable, unavailable, nil}, nil, 3, 2 * openPause},
		{"another error is returned at once", []error{unavailable, ErrNewer}, ErrNewer, 2, openPause},
		{"it never answers", []error{unavailable}, ErrUnavailable, int(openPatience / openPause), openPatience - openPause},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, calls := time.Now(), 0
				err := whileUnavailable(t.Context(), openPatience, func(context.Context) error {
					calls++
					return c.answers[min(calls, len(c.answers))-1]
				})
				if !errors.Is(err, c.want) || calls != c.calls || time.Since(start) != c.duration {
					t.Errorf("%v after %d calls in %v; want %v, %d, %v", err, calls, time.Since(start), c.want, c.calls,
						c.duration)
				}
			})
		})
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), openPause/2)
		defer cancel()
		start := time.Now()
		err := whileUnavailable(ctx, openPatience, func(context.Context) error { return ErrUnavailable })
		if !errors.Is(err, ErrUnavailable) || time.Since(start) != openPause/2 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
