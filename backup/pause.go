package backup

import "time"

// untilNext returns the time until the wall clock shows the next multiple of a period, plus an offset, or the one after
// it when the next one is near. All followers with one offset work at the same moments: to wake the process up for each
// follower alone costs more than the work does.
func untilNext(period, offset time.Duration) time.Duration {
	now := time.Now().Add(-offset)
	left := now.Truncate(period).Add(period).Sub(now)
	if left < min(period, time.Second)/2 { // a timer that is a little early would end again at once
		left += period
	}
	return left
}
