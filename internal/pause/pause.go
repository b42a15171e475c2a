// Package pause waits for a time that the end of a context, or a wake-up, cuts short.
//
// Everything may import it.
package pause

import (
	"context"
	"time"
)

// For waits for d and returns true. When ctx ends before, For returns false at once.
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

// ForWake waits for a value of a channel, and at most for d, or without a limit when d is 0. It returns at the end of
// ctx, too.
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
