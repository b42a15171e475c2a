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

// power is the input of the decision whether a plane runs. Connections through the
// router and calls of Wake are use of the plane; requests of hosting's own controllers,
// which go to the plane directly, are not.
type power struct {
	Hibernated   bool      // the spec orders sleep until use
	Ordered      time.Time // when this process saw Hibernated become true; zero: it was true before
	HasBeenReady bool      // the plane has been ready once, and its kubeconfig exists; until then it starts
	Running      bool      // its process exists
	Ready        time.Time // since when it serves; zero: it does not
	Asked        time.Time // of the last Wake; zero: none in this process
	Open         int       // connections, held ones included
	Last         time.Time // end of the last connection; earlier connections are unknown
	Closed       bool      // the router had confirmed that the route is asleep, before Open was read
}

// powerDecision is the result of power.decide.
type powerDecision struct {
	State powerState
	Run   bool          // the process must run
	Shut  bool          // the route must be asleep, so that a connection calls Wake first
	Again time.Duration // time to the next decision at the latest; 0: after the next change
}

// confirmInterval is the pause between two checks whether the router has confirmed a
// route.
const confirmInterval = 50 * time.Millisecond

// decide decides whether a plane runs at now. A hibernated plane stops after idle
// without use; use before the order to hibernate does not count. It stops in two steps,
// so that no connection is cut: first its route is shut; when the router has confirmed
// that, and there was no use meanwhile, the process stops.
func (p power) decide(now time.Time, idle time.Duration) powerDecision {
	used := latest(p.Last, p.Asked, p.Ready)
	until := used.Add(idle)
	if !p.Ordered.IsZero() && !used.After(p.Ordered) {
		until = used
	}
	switch {
	case !p.Hibernated || !p.HasBeenReady:
		return p.run(0)
	case !p.Running:
		// Only a Wake since the order starts it. Use before this process began is unknown;
		// a waiting connection calls Wake again.
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
