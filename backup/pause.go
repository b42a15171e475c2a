package backup

import (
	"context"
	"time"
)

// untilNext returns the time until the wall clock shows the next multiple of a period, or the one after it when the
// next one is near. All followers of a process work at the same moments: to wake the process up for each follower alone
// costs more than the work does.
func untilNext(period time.Duration) time.Duration {
	now := time.Now()
	left := now.Truncate(period).Add(period).Sub(now)
	if left < period/2 { // a timer that is a little early would end again at once
		left += period
	}
	return left
}

// pause waits; the error is that ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
