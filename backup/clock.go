package backup

import "time"

// clock reads the wall clock of this machine, and notices when somebody has set it back. It compares the wall clock
// with the monotonic clock, which nobody can set. The caller serializes calls.
type clock struct {
	now    func() (wall, mono time.Time) // reads both clocks, see bothClocks
	wall   time.Time                     // the wall clock at the last reading
	mono   time.Time                     // the monotonic clock at the last reading
	period time.Time                     // the present Order.Period; zero: the next reading begins one
}

// bothClocks reads the wall clock and the monotonic clock.
func bothClocks() (wall, mono time.Time) {
	now := time.Now()
	return now.UTC().Round(0), now
}

// reading is a time of the wall clock, and the Order.Period to which it belongs.
type reading struct{ now, period time.Time }

const (
	// ignoredStep is the largest step back of the wall clock that isSetBack ignores. Two clocks never advance alike.
	ignoredStep = time.Millisecond
	// readTries bounds how often read reads the clocks until they agree. When the operating system stops this thread after
	// it has read the wall clock and before it reads the monotonic clock, the wall clock seems to have been set back.
	readTries = 3
)

// read reads the clocks. When the wall clock was set back since the last reading, a new Order.Period begins. Nobody
// knows when that was, so read takes the earliest time that the wall clock can have shown afterwards: the present time,
// less the time since the last reading by the monotonic clock.
func (c *clock) read() reading {
	wall, mono := c.now()
	for try := 1; try < readTries && c.isSetBack(wall, mono); try++ {
		wall, mono = c.now()
	}
	switch {
	case c.period.IsZero():
		c.period = wall.Truncate(time.Millisecond)
	case c.isSetBack(wall, mono):
		c.period = wall.Add(-mono.Sub(c.mono)).Truncate(time.Millisecond)
	}
	c.wall, c.mono = wall, mono
	return reading{now: wall, period: c.period}
}

// isSetBack reports whether the wall clock has advanced by less than the monotonic clock since the last reading.
func (c *clock) isSetBack(wall, mono time.Time) bool {
	return wall.Before(c.wall) || wall.Sub(c.wall) < mono.Sub(c.mono)-ignoredStep
}
