package drill

import (
	"maps"
	"slices"
	"time"

	"atoll.dev/hosting/controlplane"
)

const (
	// recentSpan is the age up to which a plane's etcd still has the revision of a second: its API server compacts
	// revisions that are older than five minutes.
	recentSpan = 4 * time.Minute
	// reserve is the memory that a drill leaves to customers' planes.
	reserve = 256 << 20
)

// candidate is a plane whose backup may be restored for practice.
type candidate struct {
	ID     controlplane.ID
	Window controlplane.BackupWindow
	Memory int64 // that a plane of its size may use
}

// failure is the failed drill of a plane that no later drill has cleared.
type failure struct {
	At      time.Time `json:"at"`     // of the drill
	Second  time.Time `json:"second"` // to which it has restored
	Message string    `json:"message"`
	// IsDifferent: the data could be restored and differed from the plane's. Only a drill that compares clears the
	// failure.
	IsDifferent bool `json:"is_different,omitempty"`
}

// state is the record of this machine's drills, which Options.File keeps over restarts.
type state struct {
	Last      time.Time          `json:"last,omitzero"`      // end of the last drill that has a result
	Succeeded time.Time          `json:"succeeded,omitzero"` // end of the last one that was a success
	Drilled   controlplane.ID    `json:"drilled,omitzero"`   // plane of the last one
	Failed    map[string]failure `json:"failed,omitempty"`   // by controlplane.ID.String
}

// plan is a drill.
type plan struct {
	Plane  controlplane.ID
	Second time.Time
}

// draw returns a random number of at least 0 and less than n.
type draw func(n int64) int64

// begin returns the state with which a process begins at now. A machine that has made no drill yet, and one whose clock
// was set back, makes its first drill in the second half of the interval: machines that start together should not drill
// together.
func (s state) begin(every time.Duration, now time.Time, random draw) state {
	if s.Last.IsZero() || s.Last.After(now) {
		s.Last = now.Add(-time.Duration(random(max(int64(every/2), 1))))
	}
	return s
}

// untilNext returns the time until the next drill.
func (s state) untilNext(every time.Duration, now time.Time) time.Duration {
	return min(max(every-now.Sub(s.Last), 0), every)
}

// choose returns the next drill; false when no plane can be drilled. It leaves out a plane when the machine has no room
// for another one of its size. Planes whose last drill failed have priority, so that the repair of a backup is found
// soon; but no plane is drilled twice in a row while others can be drilled.
func (s state) choose(list []candidate, available int64, random draw) (plan, bool) {
	list = slices.DeleteFunc(slices.Clone(list), func(c candidate) bool {
		return c.Memory+reserve > available || secondsOf(c.Window) == 0
	})
	if len(list) == 0 {
		return plan{}, false
	}
	if rest := slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return c.ID == s.Drilled }); len(rest) > 0 {
		failed := slices.DeleteFunc(slices.Clone(rest), func(c candidate) bool {
			_, isFailed := s.Failed[c.ID.String()]
			return !isFailed
		})
		if len(failed) > 0 {
			list = failed
		} else if _, isFailed := s.Failed[s.Drilled.String()]; isFailed {
			list = rest
		}
	}
	c := list[random(int64(len(list)))]
	f, isFailed := s.Failed[c.ID.String()]
	switch {
	case isFailed && !f.IsDifferent && contains(c.Window, f.Second):
		return plan{c.ID, f.Second}, true // a success with another second would prove nothing about this one
	case isFailed && f.IsDifferent, random(2) == 0:
		return plan{c.ID, recentSecond(c.Window, random)}, true
	}
	return plan{c.ID, secondAt(c.Window, random(secondsOf(c.Window)))}, true
}

// recentSecond returns a random second of the last recentSpan, whose keys can be compared.
func recentSecond(w controlplane.BackupWindow, random draw) time.Time {
	last := w.Stored.Truncate(time.Second)
	from := last.Add(-recentSpan)
	if begun := w.Chains[0].Taken.Truncate(time.Second); from.Before(begun) {
		from = begun
	}
	if from.After(last) { // the clock was set back, and the window does not have the chain since
		from = last
	}
	return from.Add(time.Duration(random(int64(last.Sub(from)/time.Second)+1)) * time.Second)
}

// span returns the first second of a chain, and the number of seconds to which the chain restores.
func span(w controlplane.BackupWindow, i int) (first time.Time, seconds int64) {
	first = w.Chains[i].Taken.Truncate(time.Second)
	if !w.Chains[i].EverySecond {
		return first, 1
	}
	end := w.Stored.Truncate(time.Second).Add(time.Second)
	if i+1 < len(w.Chains) {
		end = w.Chains[i+1].Taken.Truncate(time.Second)
	}
	return first, max(int64(end.Sub(first)/time.Second), 0)
}

// secondsOf returns the number of seconds to which a window restores.
func secondsOf(w controlplane.BackupWindow) (n int64) {
	for i := range w.Chains {
		_, seconds := span(w, i)
		n += seconds
	}
	return n
}

// secondAt returns the second with a number, from 0, of those to which a window restores.
func secondAt(w controlplane.BackupWindow, n int64) time.Time {
	for i := range w.Chains {
		first, seconds := span(w, i)
		if n < seconds {
			return first.Add(time.Duration(n) * time.Second)
		}
		n -= seconds
	}
	return w.Stored.Truncate(time.Second)
}

// contains reports whether a window restores to a second.
func contains(w controlplane.BackupWindow, second time.Time) bool {
	for i := range w.Chains {
		first, seconds := span(w, i)
		if !second.Before(first) && second.Before(first.Add(time.Duration(seconds)*time.Second)) {
			return true
		}
	}
	return false
}

// needsNewChain reports whether a failed drill restored from the plane's newest chain. The backup still writes to that
// chain, and all that it writes there may be lost. A bad chain that has ended does not harm later chains.
func needsNewChain(list []candidate, p plan) bool {
	i := slices.IndexFunc(list, func(c candidate) bool { return c.ID == p.Plane })
	if i < 0 {
		return false
	}
	chains := list[i].Window.Chains
	return len(chains) > 0 && !p.Second.Before(chains[len(chains)-1].Taken.Truncate(time.Second))
}

// withoutSecond returns the state after a drill to a moment to which no backup restores: that part of the window has
// expired, or the moment is between two chains. The next drill of a failed backup restores to another moment.
func (s state) withoutSecond(p plan) state {
	f, isFailed := s.Failed[p.Plane.String()]
	if !isFailed || !f.Second.Equal(p.Second) {
		return s
	}
	f.Second = time.Time{}
	s.Failed = maps.Clone(s.Failed)
	s.Failed[p.Plane.String()] = f
	return s
}

// result is the result of a drill that was a success or a failure.
type result struct {
	failed     *failure // nil: success
	isCompared bool
}

// after returns the state after a drill that ended at now. A success without a comparison does not clear a failure that
// only a comparison shows.
func (s state) after(p plan, r result, now time.Time) state {
	s.Last, s.Drilled = now, p.Plane
	before, wasFailed := s.Failed[p.Plane.String()]
	all := maps.Clone(s.Failed)
	if all == nil {
		all = map[string]failure{}
	}
	if r.failed != nil {
		all[p.Plane.String()] = *r.failed
	} else if s.Succeeded = now; !wasFailed || !before.IsDifferent || r.isCompared {
		delete(all, p.Plane.String())
	}
	s.Failed = all
	return s
}
