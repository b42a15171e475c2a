package hosting

import "time"

// powerState is whether a plane runs, and whether that is about to change.
// Status shows it as status.power, GoingToSleep as Awake, which it still is.
type powerState string

const (
	awake        powerState = "Awake"
	asleep       powerState = "Asleep"
	waking       powerState = "Waking"
	goingToSleep powerState = "GoingToSleep"
)

// power is what decides whether a plane runs. Use of a plane is what goes
// through the router, and being asked for; what hosting's own controllers do
// in it is none.
type power struct {
	Hibernated bool      // the spec's wish: asleep until asked
	Ordered    time.Time // when this process saw the wish come; zero: it was there before
	// has been ready once; until then it starts, whatever the wish, so that its version and CA are
	// known
	Born    bool
	Running bool      // its process exists
	Ready   time.Time // since when it serves; zero: it does not
	Asked   time.Time // when it was last asked for; zero: not by this process
	Open    int       // connections, held ones included
	Last    time.Time // when the last of them ended, or before which nothing is known
	Closed  bool      // the route said asleep before Open was read, and the router had taken that
}

// powerDecision is what follows from it.
type powerDecision struct {
	State powerState
	Run   bool          // there shall be a process
	Shut  bool          // the route shall say asleep, so that a connection asks first
	Again time.Duration // decide again then at the latest; 0: when something changes
}

// settlePace is how soon it is looked whether the router has taken a route.
const settlePace = 50 * time.Millisecond

// decide says what a plane is to do at now. One that may sleep does so when
// nobody is connected and nobody was for idle; use from before the wish came
// does not count. It stops in two steps: the route first, so that nobody gets
// through, and the process when nobody did.
func (p power) decide(now time.Time, idle time.Duration) powerDecision {
	used := latest(p.Last, p.Asked, p.Ready)
	until := used.Add(idle)
	if !p.Ordered.IsZero() && !used.After(p.Ordered) {
		until = used
	}
	switch {
	case !p.Hibernated || !p.Born:
		return p.up(0)
	case !p.Running:
		// Nothing but being asked since the wish came wakes it: what was before this
		// process began is not known, and a connection that waits asks again.
		if left := p.Asked.Add(idle).Sub(now); p.Asked.After(p.Ordered) && left > 0 {
			return p.up(left)
		}
		return powerDecision{State: asleep, Shut: true}
	case p.Open > 0:
		return p.up(idle) // its end is told; this is for one that is missed
	case now.Before(until):
		return p.up(until.Sub(now))
	case !p.Closed:
		return powerDecision{State: goingToSleep, Run: true, Shut: true, Again: settlePace}
	}
	return powerDecision{State: asleep, Shut: true}
}

// up is the decision that the plane runs.
func (p power) up(again time.Duration) powerDecision {
	d := powerDecision{State: awake, Run: true, Again: again}
	if p.Hibernated && p.Ready.IsZero() {
		d.State, d.Shut = waking, true
	}
	return d
}

func latest(times ...time.Time) (t time.Time) {
	for _, u := range times {
		if u.After(t) {
			t = u
		}
	}
	return t
}
