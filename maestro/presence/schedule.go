package presence

import (
	"cmp"
	"slices"
	"time"
)

// schedule decides what the lifecycle manager is told about agents: that one
// is heard, from time to time and at once when it was thought lost, and that
// one is lost when nobody has heard it for a while. It knows the time only as
// it is told.
type schedule struct {
	lostAfter time.Duration // how long nobody hears an agent that is lost
	interval  time.Duration // how often one that is heard is reported
	since     time.Time     // who begins to listen cannot know who is silent

	agents map[string]*agentState
}

type agentState struct {
	lastHeard     time.Time // the latest, by any server; of this one's clock
	recordedAt    time.Time // the record of all servers that heard comes from, by the database's clock
	heardHere     bool      // by this one, and not said yet
	reported      presenceState
	reportedAt    time.Time
	reportedHeard time.Time // when it had been heard by then
	refusals      int       // words in a row that were not taken
}

// presenceState is what was said of an agent last, or is to be said.
type presenceState int

const (
	unreported presenceState = iota
	present
	absent
)

// dueReport is what is to be said of one agent now.
type dueReport struct {
	consumer  string
	state     presenceState
	lastHeard time.Time
}

func newSchedule(lost, every time.Duration, now time.Time) *schedule {
	return &schedule{lostAfter: lost, interval: every, since: now, agents: map[string]*agentState{}}
}

// observe notes that this server heard an agent. It returns whether that is news.
func (a *schedule) observe(consumer string, at time.Time) (news bool) {
	g := a.agents[consumer]
	if g == nil {
		g = &agentState{}
		a.agents[consumer] = g
	}
	if at.Sub(g.lastHeard) >= a.lostAfter {
		g.reported = unreported // another server may have said that it is lost
	}
	if at.After(g.lastHeard) {
		g.lastHeard, g.heardHere = at, true
	}
	return g.reported != present
}

// merge takes what all servers know of all consumers: when each agent was heard
// last, the zero value for never. A record that was noted before is nothing
// new, although the time since then is measured a little differently.
func (a *schedule) merge(heard map[string]agentSeen, now time.Time) {
	for name := range a.agents {
		if _, ok := heard[name]; !ok {
			delete(a.agents, name)
		}
	}
	for name, seen := range heard {
		if seen.At.IsZero() {
			continue
		}
		g := a.agents[name]
		if g == nil {
			g = &agentState{}
			a.agents[name] = g
		}
		if seen.At.Equal(g.recordedAt) {
			continue
		}
		g.recordedAt = seen.At
		if at := now.Add(-seen.Ago); at.After(g.lastHeard) {
			g.lastHeard = at
			if g.reported == absent {
				g.reported = unreported // who heard it says that it is back, and may be gone when it is lost again
			}
		}
	}
}

// reportScope is what a server says about agents.
type reportScope uint8

const (
	// saysNews: that an agent is heard which was not, by whichever server hears it.
	newsHeardHere reportScope = iota
	// saysAll: what any server heard, repetitions, and who is lost. One of the
	// servers does.
	allAgents
)

// due are the words that have to be said now. Repetitions are spread: at most so
// many at a time that all of them take half of the time between two.
func (a *schedule) due(now time.Time, d reportScope) (words []dueReport) {
	var again []dueReport
	for name, g := range a.agents {
		silent := now.Sub(g.lastHeard)
		if g.lastHeard.Before(a.since) {
			silent = now.Sub(a.since)
		}
		news := g.heardHere || g.refusals > 0 || d == allAgents && !g.lastHeard.Before(a.since)
		switch {
		case silent >= a.lostAfter:
			if g.reported != absent && d == allAgents {
				words = append(words, dueReport{name, absent, g.lastHeard})
			}
		case g.refusals > 0 && now.Sub(g.reportedAt) < min(a.interval, refusalWait<<min(g.refusals-1, 20)):
		case news && g.reported != present:
			words = append(words, dueReport{name, present, g.lastHeard})
		case d == allAgents && g.reported == present && g.lastHeard.After(g.reportedHeard) && now.Sub(g.reportedAt) >= a.interval:
			again = append(again, dueReport{name, present, g.lastHeard})
		}
	}
	// What is news first: the others can wait until the manager is back.
	slices.SortFunc(words, func(x, y dueReport) int {
		return cmp.Or(-cmp.Compare(x.state, y.state), cmp.Compare(x.consumer, y.consumer))
	})
	slices.SortFunc(again, func(x, y dueReport) int {
		return cmp.Or(a.agents[x.consumer].reportedAt.Compare(a.agents[y.consumer].reportedAt),
			cmp.Compare(x.consumer, y.consumer))
	})
	most := max(10, int(2*time.Duration(len(a.agents))*tickInterval/max(a.interval, tickInterval)))
	return append(words, again[:min(len(again), most)]...)
}

// markReported notes that a word was said.
func (a *schedule) markReported(w dueReport, now time.Time) {
	if g := a.agents[w.consumer]; g != nil {
		g.reported, g.reportedAt, g.reportedHeard, g.heardHere, g.refusals = w.state, now, w.lastHeard, g.heardHere && g.lastHeard.After(w.lastHeard), 0
	}
}

// refusalWait is how soon a word is said again that was not taken. It doubles up to
// the pace of others.
const refusalWait = 500 * time.Millisecond

// markRefused notes that a word was not taken: the agent is not registered there, or
// not yet. That it is heard is said again soon, since clusters wait for it.
func (a *schedule) markRefused(w dueReport, now time.Time) {
	if g := a.agents[w.consumer]; g != nil {
		g.reported, g.reportedAt = w.state, now
		if w.state == present {
			g.reported, g.refusals = unreported, min(g.refusals+1, 20)
		}
	}
}
