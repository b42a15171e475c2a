// Package pause waits for a duration. The end of a context, or a wake-up, ends the wait early.
//
// Everything may import it.
package pause

import (
	"context"
	"time"
)

// For waits for d and returns true. It returns false as soon as ctx ends.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// ForWake returns when woken has a value or is closed, when ctx ends, or after d; with d 0 there is no time limit.
func ForWake(ctx context.Context, woken <-chan struct{}, d time.Duration) {
	var timer <-chan time.Time
	if d > 0 {
		timer = time.After(d)
	}
	select {
	case <-ctx.Done():
	case <-woken:
	case <-timer:
	}
}
