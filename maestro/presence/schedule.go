package presence

import (
	"cmp"
	"slices"
	"time"

	"atoll.dev/api/work"
)

// schedule decides which reports about agents are due. An agent is reported
// present at once when it was unreported or lost, and again at each interval
// while events of it arrive; it is reported lost when no server has received an
// event of it for lostAfter. The schedule reads no clock.
type schedule struct {
	lostAfter time.Duration // without an event an agent is lost after this time
	interval  time.Duration // between two reports of a present agent
	since     time.Time     // when this server began; it has no contacts from before

	agents map[work.Consumer]*agentState
}

// agentState has the contacts and reports of one agent.
type agentState struct {
	lastSeen     time.Time // of its last event at any server, by this server's clock
	recordedAt   time.Time // of the last event that a server recorded, by the database's clock
	seenHere     bool      // this server received the last event, and has not reported it
	reported     presenceState
	reportedAt   time.Time
	reportedSeen time.Time // lastSeen in the last report
	refusals     int       // reports in a row that the lifecycle manager refused
	hosting      string    // its last recorded report of hosting, as JSON; "" for none
}

// presenceState is the state of an agent in a report.
type presenceState int

const (
	unreported presenceState = iota
	present
	absent
)

// dueReport is a report of one agent that is due now.
type dueReport struct {
	consumer work.Consumer
	state    presenceState
	lastSeen time.Time
	hosting  string // the report of hosting, as JSON; "" for none
}

func newSchedule(lost, every time.Duration, now time.Time) *schedule {
	return &schedule{lostAfter: lost, interval: every, since: now, agents: map[work.Consumer]*agentState{}}
}

// observe notes that this server received an event of an agent. It returns
// whether a report is due because of it.
func (s *schedule) observe(consumer work.Consumer, at time.Time) (news bool) {
	g := s.agents[consumer]
	if g == nil {
		g = &agentState{}
		s.agents[consumer] = g
	}
	if at.Sub(g.lastSeen) >= s.lostAfter {
		g.reported = unreported // another server may have reported it lost
	}
	if at.After(g.lastSeen) {
		g.lastSeen, g.seenHere = at, true
	}
	return g.reported != present
}

// merge adds the records of all servers: the last contact of each consumer's agent, the zero value
// without any. It removes agents without a consumer. A record that was merged before changes nothing,
// although its age is measured a little differently.
func (s *schedule) merge(contacts map[work.Consumer]agentSeen, now time.Time) {
	for name := range s.agents {
		if _, ok := contacts[name]; !ok {
			delete(s.agents, name)
		}
	}
	for name, seen := range contacts {
		if seen.At.IsZero() {
			continue
		}
		g := s.agents[name]
		if g == nil {
			g = &agentState{}
			s.agents[name] = g
		}
		if seen.At.Equal(g.recordedAt) {
			continue
		}
		g.recordedAt, g.hosting = seen.At, seen.Hosting
		if at := now.Add(-seen.Ago); at.After(g.lastSeen) {
			g.lastSeen = at
			if g.reported == absent {
				g.reported = unreported // the other server reports its return, and may be gone when it is lost again
			}
		}
	}
}

// reportScope selects the agents that a server reports.
type reportScope uint8

const (
	// newContactsHere: agents that sent this server an event and were not present before.
	newContactsHere reportScope = iota
	// allAgents: agents that sent any server an event, repeated reports, and lost agents.
	// One of the servers has this scope.
	allAgents
)

// dueReports returns the reports to send now. It spreads repeated reports: one call returns at most as many
// as are needed to report all agents within half an interval.
func (s *schedule) dueReports(now time.Time, scope reportScope) (reports []dueReport) {
	var again []dueReport
	for name, g := range s.agents {
		silent := now.Sub(g.lastSeen)
		if g.lastSeen.Before(s.since) {
			silent = now.Sub(s.since)
		}
		news := g.seenHere || g.refusals > 0 || scope == allAgents && !g.lastSeen.Before(s.since)
		switch {
		case silent >= s.lostAfter:
			if g.reported != absent && scope == allAgents {
				reports = append(reports, dueReport{name, absent, g.lastSeen, g.hosting})
			}
		case g.refusals > 0 && now.Sub(g.reportedAt) < min(s.interval, refusalWait<<min(g.refusals-1, 20)):
		case news && g.reported != present:
			reports = append(reports, dueReport{name, present, g.lastSeen, g.hosting})
		case scope == allAgents && g.reported == present && g.lastSeen.After(g.reportedSeen) &&
			now.Sub(g.reportedAt) >= s.interval:
			again = append(again, dueReport{name, present, g.lastSeen, g.hosting})
		}
	}
	// Changes first: repeated reports can wait until the lifecycle manager is back.
	slices.SortFunc(reports, func(x, y dueReport) int {
		return cmp.Or(-cmp.Compare(x.state, y.state), cmp.Compare(x.consumer, y.consumer))
	})
	slices.SortFunc(again, func(x, y dueReport) int {
		return cmp.Or(s.agents[x.consumer].reportedAt.Compare(s.agents[y.consumer].reportedAt),
			cmp.Compare(x.consumer, y.consumer))
	})
	most := max(10, int(2*time.Duration(len(s.agents))*tickInterval/max(s.interval, tickInterval)))
	return append(reports, again[:min(len(again), most)]...)
}

// markReported notes that the lifecycle manager has stored a report.
func (s *schedule) markReported(w dueReport, now time.Time) {
	if g := s.agents[w.consumer]; g != nil {
		g.reported, g.reportedAt, g.reportedSeen, g.refusals = w.state, now, w.lastSeen, 0
		g.seenHere = g.seenHere && g.lastSeen.After(w.lastSeen)
	}
}

// refusalWait is the pause after a refused report. It doubles with each refusal, up
// to the interval.
const refusalWait = 500 * time.Millisecond

// markRefused notes that the lifecycle manager refused a report: the management
// cluster is not registered, or not yet. Presence is reported again soon, since
// clusters wait for it.
func (s *schedule) markRefused(w dueReport, now time.Time) {
	if g := s.agents[w.consumer]; g != nil {
		g.reported, g.reportedAt = w.state, now
		if w.state == present {
			g.reported, g.refusals = unreported, min(g.refusals+1, 20)
		}
	}
}
