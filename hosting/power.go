package hosting

import "time"

// powerState is whether a plane runs, and whether that is about to change.
// Status shows it as status.power; it shows GoingToSleep as Awake.
type powerState string

const (
	awake        powerState = "Awake"
	asleep       powerState = "Asleep"
	waking       powerState = "Waking"
	goingToSleep powerState = "GoingToSleep"
)

// power is what decides whether a plane runs. Use of a plane is a connection
// through the router, or a call of Wake; requests of hosting's own controllers,
// which go to the plane directly, are none.
type power struct {
	Hibernated bool      // the spec orders sleep until use
	Ordered    time.Time // when this process saw Hibernated become true; zero: it was true before
	Born       bool      // the plane has been ready once; until then it starts, so that its version and CA are known
	Running    bool      // its process exists
	Ready      time.Time // since when it serves; zero: it does not
	Asked      time.Time // of the last Wake; zero: none in this process
	Open       int       // connections, held ones included
	Last       time.Time // when the last of them ended, or before which nothing is known
	Closed     bool      // the route said asleep before Open was read, and the router had confirmed it
}

// powerDecision is what follows from it.
type powerDecision struct {
	State powerState
	Run   bool          // the process must run
	Shut  bool          // the route must say asleep, so that a connection calls Wake first
	Again time.Duration // decide again then at the latest; 0: when something changes
}

// confirmInterval is how soon hosting looks whether the router has confirmed a
// route.
const confirmInterval = 50 * time.Millisecond

// decide says what a plane does at now. A hibernated plane stops when nobody is
// connected and nobody was for idle; use before the order does not count. It
// stops in two steps, so that no connection is cut: first its route closes, and
// the process stops when the router has confirmed that and nobody came meanwhile.
func (p power) decide(now time.Time, idle time.Duration) powerDecision {
	used := latest(p.Last, p.Asked, p.Ready)
	until := used.Add(idle)
	if !p.Ordered.IsZero() && !used.After(p.Ordered) {
		until = used
	}
	switch {
	case !p.Hibernated || !p.Born:
		return p.run(0)
	case !p.Running:
		// Only a Wake since the order starts it. Use before this process began is
		// not known; a connection that waits calls Wake again.
		if left := p.Asked.Add(idle).Sub(now); p.Asked.After(p.Ordered) && left > 0 {
			return p.run(left)
		}
		return powerDecision{State: asleep, Shut: true}
	case p.Open > 0:
		return p.run(idle) // the router reports the end of a connection; idle is for a lost report
	case now.Before(until):
		return p.run(until.Sub(now))
	case !p.Closed:
		return powerDecision{State: goingToSleep, Run: true, Shut: true, Again: confirmInterval}
	}
	return powerDecision{State: asleep, Shut: true}
}

// run is the decision that the plane runs.
func (p power) run(again time.Duration) powerDecision {
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
