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
	heard  time.Time // the latest, by any server
	mine   bool      // by this one, and not said yet
	said   sighting
	saidAt time.Time
	vain   int // words in a row that were not taken
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

// note takes what all servers know of all consumers: when each was last heard,
// the zero time for never.
func (a *attendance) note(heard map[string]time.Time) {
	for name := range a.agents {
		if _, ok := heard[name]; !ok {
			delete(a.agents, name)
		}
	}
	for name, at := range heard {
		if at.IsZero() {
			continue
		}
		g := a.agents[name]
		if g == nil {
			g = &attendee{}
			a.agents[name] = g
		}
		if at.After(g.heard) {
			g.heard = at
			if g.said == absent {
				g.said = unsaid // who heard it says that it is back, and may be gone when it is lost again
			}
		}
	}
}

// due are the words that have to be said now.
func (a *attendance) due(now time.Time) (words []word) {
	for name, g := range a.agents {
		silent := now.Sub(g.heard)
		if g.heard.Before(a.since) {
			silent = now.Sub(a.since)
		}
		switch {
		case silent >= a.lost:
			if g.said != absent {
				words = append(words, word{name, absent, g.heard})
			}
		case g.vain > 0 && now.Sub(g.saidAt) < min(a.every, vainWait<<min(g.vain-1, 20)):
		case (g.mine || g.vain > 0) && (g.said != present || now.Sub(g.saidAt) >= a.every):
			words = append(words, word{name, present, g.heard})
		}
	}
	// What is news first: the others can wait until the manager is back.
	slices.SortFunc(words, func(x, y word) int {
		return cmp.Or(-cmp.Compare(x.sighting, y.sighting), cmp.Compare(x.consumer, y.consumer))
	})
	return words
}

// told notes that a word was said.
func (a *attendance) told(w word, now time.Time) {
	if g := a.agents[w.consumer]; g != nil {
		g.said, g.saidAt, g.mine, g.vain = w.sighting, now, g.mine && g.heard.After(w.heard), 0
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
