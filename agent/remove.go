package agent

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// removal is an object that has to go from a work: deleted and gone, or
// released.
type removal struct {
	ref       resourceRef
	inFlight  bool
	finished  bool // it is gone, or not ours; the AMW may list it still
	failures  int
	retryAt   time.Time
	notBefore time.Time // it does not begin before
}

// lateness is how long after a start something may still come to be by the
// hand of an agent that was killed: its last calls were under way. Until then
// nothing is pruned, since what is not there yet could come after it was found
// to be gone, and stay (I9). A whole work that is deleted need not wait: the
// owner of what comes late is gone, and the cluster collects it.
const lateCallWindow = 2 * time.Second

// recheck is how often a deletion that does not end is asked for again: the
// watch may be refused where deleting is not.
const deletionRecheck = 30 * time.Second

// prune removes what the work had and no longer wants.
func (c *core) prune(w *workState, amw *amwState) {
	wanted := map[identity]bool{}
	for _, m := range w.manifests {
		if m.mapped {
			wanted[m.key.identity()] = true
		}
	}
	consider := func(r resourceRef) {
		id := keyOf(r).identity()
		if wanted[id] || w.couldBeManifest(id) {
			return
		}
		c.addRemoval(w, r)
	}
	for _, r := range amw.applied {
		consider(r)
	}
	for _, r := range w.possible {
		consider(r)
	}
	for key, r := range w.removals {
		id := key.identity()
		if wanted[id] || r.finished && !amw.lists(id) {
			delete(w.removals, key)
			c.stopWaitingForObject(key, w.id)
			continue
		}
		c.continueRemoval(w, key, r, amw.uid)
	}
}

// pending says whether something has yet to go.
func (w *workState) removalsPending() bool {
	for _, r := range w.removals {
		if !r.finished {
			return true
		}
	}
	return false
}

// mayBe says whether a manifest whose kind is not known now could be the
// object: such a one is not pruned.
func (w *workState) couldBeManifest(id identity) bool {
	for _, m := range w.manifests {
		if !m.mapped && m.rejected == "" && m.gvk.Group == id.Group && m.meta.Name == id.Name {
			return true
		}
	}
	return false
}

func (c *core) addRemoval(w *workState, r resourceRef) {
	key := keyOf(r)
	if known, ok := w.removals[key]; ok {
		if known.ref.UID == "" {
			known.ref.UID = r.UID
		}
		return
	}
	for other := range w.removals {
		if other.identity() == key.identity() {
			return
		}
	}
	w.removals[key] = &removal{ref: r}
	if c.now.Before(c.pruneNotBefore) && !w.spec.Deleting && !w.teardownBegun {
		w.removals[key].notBefore = c.pruneNotBefore
	}
	c.waitForObject(key, w.id)
}

// overRemoval ends a removal. It stays listed until the AMW has forgotten the
// object, or it would begin again.
func (c *core) finishRemoval(w *workState, key objectKey, r *removal) {
	r.finished = true
	delete(w.possible, key.identity())
	delete(w.durablePossible, key.identity())
	c.stopWaitingForObject(key, w.id)
}

// remove carries one removal on.
func (c *core) continueRemoval(w *workState, key objectKey, r *removal, owner types.UID) {
	if r.inFlight || r.finished {
		return
	}
	if r.notBefore.After(c.now) && !w.teardownBegun {
		c.wakeAt(r.notBefore, w.id)
		return
	}
	live := c.objects[key].latest
	if live != nil && (!live.exists || r.ref.UID != "" && live.uid != types.UID(r.ref.UID)) {
		delete(w.applied, key)
		c.finishRemoval(w, key, r)
		return
	}
	if r.retryAt.After(c.now) {
		c.wakeAt(r.retryAt, w.id)
		return
	}
	r.inFlight = true
	w.callsInFlight++
	c.ensureWatch(key.GroupVersionResource, false)
	uid := types.UID(r.ref.UID)
	c.emit(effRemove{
		id: w.id, key: key, uid: uid, owner: owner, amw: w.amw, obs: live,
		release: w.spec.Deleting && !ownsObject(key.identity(), w.spec.Bundle.DeleteOption),
	})
}

// removed takes the answer to a removal.
func (c *core) handleRemoved(ev evRemoved) {
	w := c.works[ev.id]
	if w == nil {
		return
	}
	w.callsInFlight--
	r := w.removals[ev.key]
	if r == nil {
		c.advance(w)
		return
	}
	r.inFlight = false
	switch {
	case ev.err != nil:
		if ev.err.kind == errTransport {
			c.startProbe()
		}
		r.failures++
		r.retryAt = c.now.Add(backoffFor(ev.err, r.failures))
		c.wakeAt(r.retryAt, w.id)
	case ev.was == removalGone:
		delete(w.applied, ev.key)
		c.finishRemoval(w, ev.key, r)
	default:
		r.failures = 0
		r.retryAt = c.now.Add(deletionRecheck)
		c.wakeAt(r.retryAt, w.id)
	}
	c.advance(w)
}

// tearDown removes all of a work: because its source deletes it, or because
// somebody deleted its AMW, after which it is applied again.
func (c *core) tearDown(w *workState) {
	if w.amwCallInFlight && !w.teardownBegun {
		return
	}
	if !w.teardownBegun && w.callsInFlight > 0 {
		return
	}
	amw := c.amwOf(w)
	if !w.teardownBegun {
		w.teardownBegun = true
		for key, r := range w.removals {
			if r.finished {
				delete(w.removals, key) // looked at again
			}
		}
		for _, r := range c.possibleObjects(w, amw) {
			c.addRemoval(w, r)
		}
		for _, m := range w.manifests {
			if m.mapped {
				c.unclaim(w, m)
				m.mapped = false
			}
		}
		c.releaseLoaded(w)
		if w.spec.Deleting && !w.unknownToServer && amw != nil {
			c.reportDeleting(w)
		}
	}
	var owner types.UID
	if amw != nil {
		owner = amw.uid
		for _, r := range amw.applied {
			if _, ok := w.removals[keyOf(r)]; ok {
				c.addRemoval(w, r) // learns the uid
			}
		}
		if !amw.deleting && !w.amwCallInFlight && !w.amwDue.After(c.now) {
			w.amwCallInFlight = true
			c.emit(effDeleteAMW{w.id, w.amw, amw.uid})
		}
	}
	for key, r := range w.removals {
		c.continueRemoval(w, key, r, owner)
	}
	c.recordRemaining(w, amw)
	if w.removalsPending() || w.callsInFlight > 0 || w.amwCallInFlight {
		return
	}
	if amw != nil {
		if !amw.deleting || w.amwDue.After(c.now) {
			return
		}
		w.amwCallInFlight = true
		stay := amw.otherFinalizers()
		if len(stay) == len(amw.finalizers) {
			w.amwCallInFlight = false // ours is gone already; the watch will show the end
			return
		}
		c.emit(effFinalizeAMW{w.id, w.amw, amw.uid, stay})
		return
	}
	c.finishTeardown(w)
}

// shrinkEvery is the least time between two records of what is left of a work:
// a thousand objects that end one by one make a few writes.
const recordRemainingEvery = time.Second

// shrinkRecord takes the objects that are gone out of the AMW's list, so that it
// shows which ones the deletion still waits for. It changes only what is shown:
// what the store knows of the work stays until its end.
func (c *core) recordRemaining(w *workState, amw *amwState) {
	if amw == nil || w.callsInFlight > 0 || w.amwCallInFlight || w.recordInFlight || !w.removalsPending() {
		return
	}
	left := []resourceRef{}
	for key, r := range w.removals {
		if r.finished {
			continue
		}
		ref, live := r.ref, c.objects[key].latest
		if live != nil && !live.exists {
			continue
		}
		if live != nil {
			ref.UID = string(live.uid)
		}
		left = append(left, ref)
	}
	slices.SortFunc(left, compareRefs)
	if slices.Equal(left, amw.applied) {
		return
	}
	if w.recordRemainingDue.After(c.now) {
		c.wakeAt(w.recordRemainingDue, w.id)
		return
	}
	w.recordRemainingDue = c.now.Add(recordRemainingEvery)
	w.recordInFlight, w.recordedRefs = true, left
	c.emit(effRecordAMW{w.id, w.amw, amw.uid, left, amw.evicting})
}

// reportDeleting says that the removal has begun; what was said last about the
// work stays said.
func (c *core) reportDeleting(w *workState) {
	var status workv1.ManifestWorkStatus
	if w.status != nil {
		w.status.Status.DeepCopyInto(&status)
	}
	setCondition(&status.Conditions, metav1.Condition{
		Type: workv1.WorkDeleting, Status: metav1.ConditionTrue, Reason: "WorkDeleting",
		Message: "ManifestWork is being deleted", ObservedGeneration: w.spec.Generation,
	}, c.now)
	w.status = &sentStatus{Status: status, Generation: w.spec.Generation, Hash: statusHash(status)}
	c.emit(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w), Status: w.status}})
	c.out.put(w.id, outgoing{})
}

// traces is everything that may exist by the work.
func (c *core) possibleObjects(w *workState, amw *amwState) []resourceRef {
	var refs []resourceRef
	if amw != nil {
		refs = append(refs, amw.applied...)
	}
	for _, a := range w.applied {
		refs = append(refs, a.Ref)
	}
	for _, r := range w.possible {
		refs = append(refs, r)
	}
	return refs
}

// tornDown ends a removal: nothing of the work is left.
func (c *core) finishTeardown(w *workState) {
	if f := c.formerAMW(w); f != nil && w.spec.Deleting { // it may own something yet
		w.teardownBegun = false
		c.claimName(w, f.name)
		c.advance(w)
		return
	}
	clear(w.removals)
	clear(w.applied)
	clear(w.possible)
	clear(w.durablePossible)
	w.teardownBegun = false
	if !w.spec.Deleting { // its AMW was deleted by hand: apply it anew
		for _, m := range w.manifests {
			m.attempted, m.failures, m.retryAt = m.rejected != "", 0, time.Time{}
		}
		c.emit(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}})
		c.advance(w)
		return
	}
	gone := w.spec
	if w.unknownToServer {
		if w.nextSpec == nil {
			c.releaseName(w)
			delete(c.works, w.id)
			return
		}
		w.unknownToServer, w.spec = false, nil // a spec came meanwhile
		c.advance(w)
		return
	}
	c.releaseName(w)
	delete(c.works, w.id)
	c.deleted.add(gone, c.now)
	c.emit(effPersist{rec: record{ID: w.id, Drop: true}})
	c.out.put(w.id, outgoing{deleted: gone})
	if w.specRefused {
		// Something newer came for it while it went away, and was not taken.
		c.emit(effResync{c.specVersions()})
	}
}
