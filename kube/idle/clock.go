package idle

import (
	"time"

	"k8s.io/utils/clock"
)

// Clock is the real clock, but it shortens each timer of a second or more, so that the timer ends a whole number of
// seconds after the clock was made. So all these timers end at the same moment, and the process wakes once for them.
type Clock struct {
	clock.RealClock
	start time.Time
}

// NewClock returns a clock that starts now.
func NewClock() Clock { return Clock{start: time.Now()} }

// NewTimer implements [clock.Clock].
func (c Clock) NewTimer(d time.Duration) clock.Timer {
	return alignedTimer{c.RealClock.NewTimer(c.align(time.Since(c.start), d)), c}
}

// align returns the duration of a timer for d that starts at now, which counts from start.
func (c Clock) align(now, d time.Duration) time.Duration {
	if d < time.Second {
		return d
	}
	return (now + d).Truncate(time.Second) - now
}

type alignedTimer struct {
	clock.Timer
	clock Clock
}

// Reset implements [clock.Timer].
func (t alignedTimer) Reset(d time.Duration) bool {
	return t.Timer.Reset(t.clock.align(time.Since(t.clock.start), d))
}
