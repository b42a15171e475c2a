package agent

import (
	"slices"
	"time"
)

// recordAMW writes the list of the work's objects into its AMW, once all manifests
// were attempted.
func (c *core) recordAMW(w *workState, amw *amwState) {
	if w.amwCallInFlight || w.recordInFlight || w.callsInFlight > 0 {
		return
	}
	want := c.appliedRefs(w)
	if slices.Equal(want, amw.applied) && !amw.evicting {
		c.clearPossible(w)
		return
	}
	if w.amwDue.After(c.now) {
		return
	}
	w.recordInFlight, w.recordedRefs = true, want
	c.emit(effRecordAMW{w.id, w.amw, amw.uid, want, amw.evicting})
}

// appliedRefs lists the objects of the work that exist, and those whose removal
// has not finished.
func (c *core) appliedRefs(w *workState) []resourceRef {
	refs := []resourceRef{}
	listed := map[objectKey]bool{}
	for _, m := range w.manifests {
		if !m.mapped {
			continue
		}
		o := c.objects[m.key]
		switch {
		case o != nil && o.latest != nil:
			if !o.latest.exists {
				continue
			}
			refs = append(refs, refOf(m.key, o.latest.uid))
		case w.applied[m.key].Hash != "":
			refs = append(refs, w.applied[m.key].Ref)
		default:
			continue
		}
		listed[m.key] = true
	}
	for key, r := range w.removals {
		if !listed[key] && !r.finished {
			refs = append(refs, r.ref)
		}
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

// clearPossible clears the list of possible objects, once the AMW lists the
// existing ones.
func (c *core) clearPossible(w *workState) {
	if len(w.possible) == 0 || w.removalsPending() {
		return
	}
	clear(w.possible)
	clear(w.durablePossible)
	c.emit(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}})
}

// handleAMWDone handles the answer to a call about a work's AMW.
func (c *core) handleAMWDone(ev evAMWDone) {
	w := c.works[ev.id]
	switch {
	case w == nil:
	case ev.op == amwRecord:
		w.recordInFlight = false
	default:
		w.amwCallInFlight = false
	}
	if ev.err != nil {
		if ev.err.kind == errTransport {
			c.startProbe()
		}
		if w != nil {
			if ev.err.kind != errTransport && (ev.op == amwCreate || ev.op == amwTakeOver) {
				w.amwErr = ev.err.message
			}
			w.amwFailures++
			w.amwDue = c.now.Add(backoffFor(ev.err, w.amwFailures))
			c.wakeAt(w.amwDue, w.id)
			c.advance(w)
		}
		return
	}
	if w != nil {
		w.amwFailures, w.amwDue = 0, time.Time{}
		if ev.op == amwCreate || ev.op == amwTakeOver {
			w.amwErr = ""
		}
	}
	if ev.formerDeleted != "" {
		c.dropAMW(ev.formerDeleted)
	}
	if ev.deletionRequested {
		if amw := c.amws[ev.name]; w != nil && amw != nil && !amw.deleting {
			w.amwDue = c.now.Add(deletionRecheck)
			c.wakeAt(w.amwDue, w.id)
		}
		c.advanceByID(ev.id)
		return
	}
	if ev.amw == nil {
		c.dropAMW(ev.name)
		c.advanceByID(ev.id)
		return
	}
	c.observeAMW(ev.amw)
}
