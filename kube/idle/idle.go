// Package idle lets a plane cost less while nothing happens in it.
//
// Most of what an idle plane costs is waking up: some hundred timers a second, most of them etcd's, each for
// microseconds of work. So an idle plane has one processor, which spares waking a second thread for each goroutine that
// becomes runnable, and the kernel may end its timers up to [slack] late, so that those which end near each other end
// at once. A busy plane has all its processors, and exact timers. [Governor] changes from one to the other: see decide.
// [Clock] aligns timers that may end early.
//
// Only timers can be late. The kernel reports requests, the answers to them and the disk's writes at once, in an idle
// plane too.
package idle

import "time"

// mode is what a plane is set up for.
type mode string

const (
	busy mode = "busy" // all processors, exact timers
	idle mode = "idle" // one processor, late timers
)

const (
	// calmTime is how long a plane is observed before it becomes idle.
	calmTime = 10 * time.Second
	// calmShare is the share of one processor below which a plane becomes idle. An idle one uses 1 to 2 %.
	calmShare = 0.05
	// busyShare is the share of one processor above which a plane becomes busy. A garbage collection of an idle plane
	// stays below it.
	busyShare = 1. / 3
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

// state is a mode and when the present period of observation began.
type state struct {
	mode  mode
	since usage
}

// decide returns the state after a measurement, and after a crowd of requests if there was one.
//
// A busy plane becomes idle when it has used less than calmShare for calmTime. An idle plane becomes busy when it has
// used more than busyShare since the measurement before, or at once when more than idleRequests requests are in
// progress. Between the two shares it stays what it is.
func decide(s state, now usage, seen event) state {
	switch {
	case seen == crowd:
		return state{busy, now}
	case s.mode == idle && now.shareSince(s.since) > busyShare:
		return state{busy, now}
	case s.mode == idle:
		return state{idle, now}
	case now.at.Sub(s.since.at) < calmTime:
		return s
	case now.shareSince(s.since) < calmShare:
		return state{idle, now}
	}
	return state{busy, now}
}

// event is why a measurement is made.
type event string

const (
	tick  event = "tick"  // a second has passed
	crowd event = "crowd" // more than idleRequests requests are in progress
)
