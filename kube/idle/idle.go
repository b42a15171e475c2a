// Package idle lets a plane cost less while nothing happens in it.
//
// Most of what an idle plane costs is waking up: some hundred timers a second, most of them etcd's, each for
// microseconds of work. So an idle plane has one processor, which spares waking a second thread for each goroutine
// that becomes runnable, and the kernel may end its timers up to [slack] late, so that timers whose ends are close
// wake the process once. A busy plane has up to four processors, and the kernel's own slack. [Governor] changes a
// plane from one mode to the other: see decide. In both modes [Clock] shortens timers of a second or more, so that
// they end together.
//
// Only timers can be late. The kernel reports requests, the answers to them and the disk's writes at once, in an idle
// plane too.
package idle

import "time"

// mode is what a plane is set up for.
type mode string

const (
	busy mode = "busy" // up to four processors, timers at most 50 µs late
	idle mode = "idle" // one processor, late timers
)

const (
	// idleAfter is how long a busy plane is observed before it may become idle.
	idleAfter = 10 * time.Second
	// idleBelow is the share of one processor below which a plane becomes idle. An idle one uses 1 to 2 %.
	idleBelow = 0.05
	// busyAbove is the share of one processor above which a plane becomes busy. A garbage collection of an idle plane
	// stays below it.
	busyAbove = 1. / 3
	// idleRequests is the number of requests in progress that an idle plane has by itself: two of its parts sometimes
	// ask at the same time.
	idleRequests = 2
)

// usage is the processor time that the process has used until a moment, by all its threads.
type usage struct {
	at   time.Time
	used time.Duration
}

// shareSince returns the share of one processor that was used since an earlier moment.
func (u usage) shareSince(earlier usage) float64 {
	return float64(u.used-earlier.used) / float64(u.at.Sub(earlier.at))
}

// state is a mode, and the usage when the present period of observation began: in an idle plane the last measurement.
type state struct {
	mode  mode
	since usage
}

// decide returns the state after a measurement. seen is the reason for it.
//
// A busy plane is observed in periods of idleAfter, one after the other. When it used less than idleBelow in a period
// it becomes idle; otherwise the next period begins. So it becomes idle 10 to 20 s after its last work. An idle plane
// becomes busy when it used more than busyAbove since the last measurement, or at once after a crowd. A crowd in a
// busy plane begins a new period. An idle plane between the two shares stays idle.
func decide(s state, now usage, seen event) state {
	switch {
	case seen == crowd:
		return state{busy, now}
	case s.mode == idle && now.shareSince(s.since) > busyAbove:
		return state{busy, now}
	case s.mode == idle:
		return state{idle, now}
	case now.at.Sub(s.since.at) < idleAfter:
		return s
	case now.shareSince(s.since) < idleBelow:
		return state{idle, now}
	}
	return state{busy, now}
}

// event is the reason for a measurement.
type event string

const (
	tick  event = "tick"  // a second has passed
	crowd event = "crowd" // more than idleRequests requests are in progress
)
