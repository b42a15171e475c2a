package ops

import "time"

// Bounds of a pace.
const (
	// fewestSteps run at once whatever the requests take: operations always come further, also on a machine that
	// others keep busy.
	fewestSteps = 2
	mostSteps   = 16
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
// limit is halved if too many were slow, and else grows by one. It is a value: each method returns the next one.
type pace struct {
	limit       int
	begun       time.Time // of the window
	total, slow int       // requests in the window
}

func newPace(now time.Time) pace { return pace{limit: mostSteps, begun: now} }

// observe returns the pace after a request that has ended now.
func (p pace) observe(took time.Duration, now time.Time) pace {
	p = p.withoutRequests(now)
	p.total++
	if took > slowRequest {
		p.slow++
	}
	if now.Sub(p.begun) < paceWindow {
		return p
	}
	if p.slow*slowShare > p.total {
		return pace{limit: max(fewestSteps, p.limit/2), begun: now}
	}
	return pace{limit: min(mostSteps, p.limit+1), begun: now}
}

// withoutRequests returns the pace at a time at which no request has ended since the last one.
func (p pace) withoutRequests(now time.Time) pace {
	if now.Sub(p.begun) < quietTime {
		return p
	}
	if p.total == 0 {
		return newPace(now)
	}
	p.total, p.slow, p.begun = 0, 0, now // the requests of the window ended before the quiet time
	return p
}
