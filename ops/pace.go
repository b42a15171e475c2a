package ops

import "time"

// Bounds of a pace.
const (
	// fewestSteps run at once whatever the requests take: operations always come further, also on a machine that
	// others keep busy.
	fewestSteps = 2
	mostSteps   = 16
	// loneFewestSteps is the lower bound where all requests are of one scope: they do not show whether the process is
	// busy or the scope asks for what takes long, and the operations of other scopes must not wait for the latter.
	loneFewestSteps = mostSteps / 2
	// slowRequest is how long a request may take before it counts as slow. Requests have a target of 50 ms for the
	// 99th percentile.
	slowRequest = 20 * time.Millisecond
	// slowShare is that the limit falls when one of so many requests of a window was slow.
	slowShare  = 20
	paceWindow = 100 * time.Millisecond
	// quietTime without any request lifts the limit: there is no request to give way to.
	quietTime = time.Second
)

// pace is a limit of steps at once that follows the time that requests take. At the end of each window of requests the
// limit is halved if too many were slow, and else grows by one. The scope with the most slow requests does not count:
// no scope alone holds the operations of all others up. A caller uses the newest value only.
type pace struct {
	limit  int
	begun  time.Time               // of the window
	counts map[string]requestCount // of the window, by scope
}

type requestCount struct{ total, slow int }

func newPace(now time.Time) pace { return pace{limit: mostSteps, begun: now} }

// observe returns the pace after a request of a scope that has ended now.
func (p pace) observe(scope string, took time.Duration, now time.Time) pace {
	p = p.withoutRequests(now)
	if p.counts == nil {
		p.counts = map[string]requestCount{}
	}
	c := p.counts[scope]
	c.total++
	if took > slowRequest {
		c.slow++
	}
	p.counts[scope] = c
	if now.Sub(p.begun) < paceWindow {
		return p
	}
	return pace{limit: p.nextLimit(), begun: now}
}

// nextLimit returns the limit after the window.
func (p pace) nextLimit() int {
	var all, worst requestCount
	for _, c := range p.counts {
		all.total, all.slow = all.total+c.total, all.slow+c.slow
		if c.slow > worst.slow {
			worst = c
		}
	}
	switch {
	case len(p.counts) == 1 && all.slow*slowShare > all.total && p.limit >= loneFewestSteps:
		return max(loneFewestSteps, p.limit/2)
	case (all.slow-worst.slow)*slowShare > all.total-worst.total:
		return max(fewestSteps, p.limit/2)
	}
	return min(mostSteps, p.limit+1)
}

// withoutRequests returns the pace at a time at which no request has ended since the last one.
func (p pace) withoutRequests(now time.Time) pace {
	if now.Sub(p.begun) < quietTime {
		return p
	}
	if len(p.counts) == 0 {
		return newPace(now)
	}
	p.counts, p.begun = nil, now // the requests of the window ended before the quiet time
	return p
}
