package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
)

// resync compares what the agent holds with what its server wants it to. Our
// servers compare digests (docs/decisions/021); a real Maestro drops those
// events, and gets the list of all works in one message when it has not
// answered within fallback. A comparison that found a difference is repeated
// soon, one that found none, or that no server answered, now and then: that
// mends whatever was lost.
type resync struct {
	listAfter time.Duration // default 2 s
	every     time.Duration // between comparisons when nothing differs, or no digest was answered yet; default 5 min

	online            bool
	digests           bool      // the server has answered one
	usesList          bool      // it has not, and got a list
	unansweredDigests int       // digests without an answer
	differencesInRow  int       // comparisons in a row that found a difference
	due               time.Time // of the next step
	listDue           time.Time // when to send the list, zero for not at all
}

const (
	// verifyAfter is when a comparison that found a difference is repeated.
	verifyAfter = 5 * time.Second
	// listTries is after how many digests without an answer a server that has
	// answered before gets the list: it may be another one now.
	listTries = 3
)

func (r resync) withDefaults() resync {
	if r.listAfter <= 0 {
		r.listAfter = 2 * time.Second
	}
	if r.every <= 0 {
		r.every = 5 * time.Minute
	}
	return r
}

// begin is called when the bus is connected.
func (r *resync) start(c *core) {
	r.online, r.unansweredDigests, r.differencesInRow, r.listDue = true, 0, 0, time.Time{}
	r.sendDigest(c)
	if r.usesList {
		r.sendList(c)
	}
}

func (r *resync) stop() {
	r.online, r.due, r.listDue = false, time.Time{}, time.Time{}
}

// ask sends the digest.
func (r *resync) sendDigest(c *core) {
	states := c.workStates()
	c.emit(effPublish{work.AgentDigest, work.Digest{Works: len(states), Root: digest.Root(digest.Works(states))}})
	r.unansweredDigests++
	if r.digests {
		r.scheduleIn(c, min(r.listAfter<<min(r.unansweredDigests-1, 10), time.Minute))
		if r.unansweredDigests == listTries {
			r.sendList(c)
		}
		return
	}
	// What got lost was perhaps this, so the server may be one of ours yet.
	r.scheduleIn(c, r.every)
	if !r.usesList && r.listDue.IsZero() {
		r.listDue = c.now.Add(r.listAfter)
		c.wakeAt(r.listDue, resyncTimer)
	}
}

func (r *resync) scheduleIn(c *core, d time.Duration) {
	r.due = c.now.Add(d)
	c.wakeAt(r.due, resyncTimer)
}

// list sends what a real Maestro wants.
func (r *resync) sendList(c *core) {
	r.listDue = time.Time{}
	c.emit(effResync{c.specVersions()})
}

// tick does what is due.
func (r *resync) runDue(c *core) {
	if !r.online {
		return
	}
	if !r.listDue.IsZero() && !r.listDue.After(c.now) {
		r.usesList = !r.digests
		r.sendList(c)
	}
	if !r.due.IsZero() && !r.due.After(c.now) {
		r.sendDigest(c)
	}
}

// answered takes what the server says to the digest, or that it wants one.
func (r *resync) handleAnswer(c *core, a work.DigestAnswer) {
	if !r.online {
		return
	}
	r.digests, r.usesList, r.listDue, r.unansweredDigests = true, false, time.Time{}, 0
	switch {
	case a.Ask:
		r.sendDigest(c)
		return
	case a.Same:
		r.differencesInRow = 0
		r.scheduleIn(c, r.every)
		return
	}
	r.scheduleIn(c, min(verifyAfter<<min(r.differencesInRow, 10), r.every))
	r.differencesInRow++
	if len(a.Buckets) == 0 {
		return // it knows that there is nothing to list
	}
	states := c.workStates()
	if a.Bits < 0 || a.Bits > digest.MaxBits {
		return
	}
	buckets, err := digest.Differing(digest.Buckets(digest.Works(states), a.Bits), a.Buckets, a.Bits)
	if err != nil {
		return // the next comparison may be better
	}
	for _, piece := range digest.Pieces(states, a.Bits, buckets) {
		c.emit(effPublish{work.AgentWorks, piece})
	}
}

// questioned takes a server's question about statuses in the form that all
// have. A server asks when it is back; what this agent asked while it was away
// nobody heard, so it asks again, and finds out anew what the server speaks.
func (r *resync) handleQuestion(c *core) {
	if r.online && r.usesList {
		r.usesList = false
		r.sendDigest(c)
	}
}

// sayWorks sends works back as they came, for a server that lost them. One that
// is to go is none to keep.
func (c *core) sendHeldWorks(ids []string) {
	for _, id := range ids {
		w := c.works[workID(id)]
		if w == nil {
			continue
		}
		s := w.newestSpec()
		if s == nil || s.Deleting {
			continue
		}
		bundle, err := json.Marshal(s.Bundle)
		if err != nil {
			continue // it came as JSON
		}
		c.emit(effPublish{work.AgentSpec, work.HeldSpec{ID: id, Version: s.Generation, Metadata: s.Metadata, Bundle: bundle}})
	}
}

// states lists what is known, as it is compared. AppliedManifestWorks of works
// that are not known are in it, at generation 0: their store was lost, and
// should the server have lost them too, an operator can have them deleted.
func (c *core) workStates() []work.WorkState {
	list := make([]work.WorkState, 0, len(c.works))
	for id, w := range c.works {
		s := w.newestSpec()
		if s == nil {
			continue
		}
		state := work.WorkState{ID: string(id), Version: s.Generation, Deleting: s.Deleting, Life: s.Life}
		if w.status != nil && !s.Deleting {
			state.Status = digest.Status(w.status.Hash)
		}
		list = append(list, state)
	}
	for _, a := range c.amws {
		if !a.deleting && c.workOf(a) == nil {
			list = append(list, work.WorkState{ID: string(a.creator())})
		}
	}
	return list
}

// versions lists works for a real Maestro, which would order what it does not
// know deleted.
func (c *core) specVersions() []work.SpecVersion {
	list := []work.SpecVersion{}
	for _, id := range slices.Sorted(maps.Keys(c.works)) {
		if s := c.works[id].newestSpec(); s != nil {
			list = append(list, work.SpecVersion{ID: string(id), Version: s.Generation})
		}
	}
	return list
}
