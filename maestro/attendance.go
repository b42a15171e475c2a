package maestro

import (
	"cmp"
	"slices"
	"time"
)

// attendance decides what the lifecycle manager is told about agents: that one
// is heard, from time to time and at once when it was thought lost, and that
// one is lost when nobody has heard it for a while. It knows the time only as
// it is told.
type attendance struct {
	lost  time.Duration // how long nobody hears an agent that is lost
	every time.Duration // how often one that is heard is reported
	since time.Time     // who begins to listen cannot know who is silent

	agents map[string]*attendee
}

type attendee struct {
	heard  time.Time // the latest, by any server; of this one's clock
	noted  time.Time // the record of all servers that heard comes from, by the database's clock
	mine   bool      // by this one, and not said yet
	said   sighting
	saidAt time.Time
	told   time.Time // when it had been heard by then
	vain   int       // words in a row that were not taken
}

// sighting is what was said of an agent last, or is to be said.
type sighting int

const (
	unsaid sighting = iota
	present
	absent
)

// word is what is to be said of one agent now.
type word struct {
	consumer string
	sighting sighting
	heard    time.Time
}

func newAttendance(lost, every time.Duration, now time.Time) *attendance {
	return &attendance{lost: lost, every: every, since: now, agents: map[string]*attendee{}}
}

// hear notes that this server heard an agent. It returns whether that is news.
func (a *attendance) hear(consumer string, at time.Time) (news bool) {
	g := a.agents[consumer]
	if g == nil {
		g = &attendee{}
		a.agents[consumer] = g
	}
	if at.Sub(g.heard) >= a.lost {
		g.said = unsaid // another server may have said that it is lost
	}
	if at.After(g.heard) {
		g.heard, g.mine = at, true
	}
	return g.said != present
}

// note takes what all servers know of all consumers: when each agent was heard
// last, the zero value for never. A record that was noted before is nothing
// new, although the time since then is measured a little differently.
func (a *attendance) note(heard map[string]agentSeen, now time.Time) {
	for name := range a.agents {
		if _, ok := heard[name]; !ok {
			delete(a.agents, name)
		}
	}
	for name, seen := range heard {
		if seen.at.IsZero() {
			continue
		}
		g := a.agents[name]
		if g == nil {
			g = &attendee{}
			a.agents[name] = g
		}
		if seen.at.Equal(g.noted) {
			continue
		}
		g.noted = seen.at
		if at := now.Add(-seen.ago); at.After(g.heard) {
			g.heard = at
			if g.said == absent {
				g.said = unsaid // who heard it says that it is back, and may be gone when it is lost again
			}
		}
	}
}

// duty is what a server says about agents.
type duty uint8

const (
	// saysNews: that an agent is heard which was not, by whichever server hears it.
	saysNews duty = iota
	// saysAll: what any server heard, repetitions, and who is lost. One of the
	// servers does.
	saysAll
)

// due are the words that have to be said now. Repetitions are spread: at most so
// many at a time that all of them take half of the time between two.
func (a *attendance) due(now time.Time, d duty) (words []word) {
	var again []word
	for name, g := range a.agents {
		silent := now.Sub(g.heard)
		if g.heard.Before(a.since) {
			silent = now.Sub(a.since)
		}
		news := g.mine || g.vain > 0 || d == saysAll && !g.heard.Before(a.since)
		switch {
		case silent >= a.lost:
			if g.said != absent && d == saysAll {
				words = append(words, word{name, absent, g.heard})
			}
		case g.vain > 0 && now.Sub(g.saidAt) < min(a.every, vainWait<<min(g.vain-1, 20)):
		case news && g.said != present:
			words = append(words, word{name, present, g.heard})
		case d == saysAll && g.said == present && g.heard.After(g.told) && now.Sub(g.saidAt) >= a.every:
			again = append(again, word{name, present, g.heard})
		}
	}
	// What is news first: the others can wait until the manager is back.
	slices.SortFunc(words, func(x, y word) int {
		return cmp.Or(-cmp.Compare(x.sighting, y.sighting), cmp.Compare(x.consumer, y.consumer))
	})
	slices.SortFunc(again, func(x, y word) int {
		return cmp.Or(a.agents[x.consumer].saidAt.Compare(a.agents[y.consumer].saidAt),
			cmp.Compare(x.consumer, y.consumer))
	})
	most := max(10, int(2*time.Duration(len(a.agents))*reportTick/max(a.every, reportTick)))
	return append(words, again[:min(len(again), most)]...)
}

// told notes that a word was said.
func (a *attendance) told(w word, now time.Time) {
	if g := a.agents[w.consumer]; g != nil {
		g.said, g.saidAt, g.told, g.mine, g.vain = w.sighting, now, w.heard, g.mine && g.heard.After(w.heard), 0
	}
}

// vainWait is how soon a word is said again that was not taken. It doubles up to
// the pace of others.
const vainWait = 500 * time.Millisecond

// refused notes that a word was not taken: the agent is not registered there, or
// not yet. That it is heard is said again soon, since clusters wait for it.
func (a *attendance) refused(w word, now time.Time) {
	if g := a.agents[w.consumer]; g != nil {
		g.said, g.saidAt = w.sighting, now
		if w.sighting == present {
			g.said, g.vain = unsaid, min(g.vain+1, 20)
		}
	}
}
