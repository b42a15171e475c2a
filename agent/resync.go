package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
)

// resync compares the works of the agent with those of its server. Atoll's server
// compares digests (docs/decisions/021). A real Maestro drops these events: without
// an answer within listAfter the agent sends the list of all works in one message.
// After a difference the comparison is repeated soon, otherwise at each interval
// every: that repairs the loss of any message.
type resync struct {
	listAfter time.Duration // default 2 s
	every     time.Duration // between comparisons when nothing differs, or no digest was answered yet; default 5 min

	online            bool
	digests           bool      // the server has answered a digest
	usesList          bool      // the server has not answered, and got a list
	unansweredDigests int       // in a row
	differencesInRow  int       // comparisons with a difference, in a row
	due               time.Time // of the next step
	listDue           time.Time // when to send the list; zero: never
}

const (
	// verifyAfter is the pause before a comparison with a difference is repeated.
	verifyAfter = 5 * time.Second
	// listTries is the number of unanswered digests after which a server that
	// answered before gets the list: another server may have taken its place.
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

// start begins a comparison; the bus is connected.
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

// sendDigest sends the digest of all works.
func (r *resync) sendDigest(c *core) {
	states := c.workStates()
	c.emit(effPublish{work.AgentDigest, work.Digest{Works: len(states), Root: digest.Root(digest.ItemsOf(states))}})
	r.unansweredDigests++
	if r.digests {
		r.scheduleIn(c, min(r.listAfter<<min(r.unansweredDigests-1, 10), time.Minute))
		if r.unansweredDigests == listTries {
			r.sendList(c)
		}
		return
	}
	// The digest may have been lost, so the server may still compare digests.
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

// sendList sends the list of all works, for a real Maestro.
func (r *resync) sendList(c *core) {
	r.listDue = time.Time{}
	c.emit(effResync{c.specVersions()})
}

// runDue sends the digest or the list when it is due.
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

// handleAnswer handles the server's answer to a digest, or its request for one.
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
		return // the server needs no details
	}
	states := c.workStates()
	if a.Bits < 0 || a.Bits > digest.MaxBits {
		return
	}
	buckets, err := digest.Differing(digest.Buckets(digest.ItemsOf(states), a.Bits), a.Buckets, a.Bits)
	if err != nil {
		return // the next comparison begins again
	}
	for _, piece := range digest.SplitWorks(states, a.Bits, buckets) {
		c.emit(effPublish{work.AgentWorks, piece})
	}
}

// handleStatusRequest starts a new comparison, beginning with a digest, if the server
// that requests statuses was taken for a real Maestro. A server sends such a request
// after its start; it may have missed what the agent sent before.
func (r *resync) handleStatusRequest(c *core) {
	if r.online && r.usesList {
		r.usesList = false
		r.sendDigest(c)
	}
}

// sendHeldWorks sends works back to a server that lost them, as they arrived. It
// leaves out works that are being deleted.
func (c *core) sendHeldWorks(ids []work.ID) {
	for _, id := range ids {
		w := c.works[work.ID(id)]
		if w == nil {
			continue
		}
		s := w.newestSpec()
		if s == nil || s.Deleting {
			continue
		}
		bundle, err := json.Marshal(s.Bundle)
		if err != nil {
			continue // impossible: it was decoded from JSON
		}
		c.emit(effPublish{work.AgentSpec, work.HeldSpec{ID: id, Version: s.Generation, Metadata: s.Metadata, Bundle: bundle}})
	}
}

// workStates lists all works for the comparison. It includes, at generation 0, the
// AppliedManifestWorks of unknown works: the agent's store was lost. When the server
// lost them too, an operator can have them deleted.
func (c *core) workStates() []work.WorkState {
	list := make([]work.WorkState, 0, len(c.works))
	for id, w := range c.works {
		s := w.newestSpec()
		if s == nil {
			continue
		}
		state := work.WorkState{ID: work.ID(id), Version: s.Generation, Deleting: s.Deleting, Life: s.Life}
		if w.status != nil && !s.Deleting {
			state.Status = digest.ShortStatus(w.status.Hash)
		}
		list = append(list, state)
	}
	for _, a := range c.amws {
		if !a.deleting && c.workOf(a) == nil {
			list = append(list, work.WorkState{ID: work.ID(a.creator())})
		}
	}
	return list
}

// specVersions lists the works for a real Maestro. It leaves out AppliedManifestWorks
// of unknown works, since a real Maestro would order their deletion.
func (c *core) specVersions() []work.SpecVersion {
	list := []work.SpecVersion{}
	for _, id := range slices.Sorted(maps.Keys(c.works)) {
		if s := c.works[id].newestSpec(); s != nil {
			list = append(list, work.SpecVersion{ID: work.ID(id), Version: s.Generation})
		}
	}
	return list
}
