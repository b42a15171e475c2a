package agent

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// removal is an object that the work must delete or release.
type removal struct {
	ref       resourceRef
	inFlight  bool
	finished  bool // the object is deleted or released; the AMW may still list it
	failures  int
	retryAt   time.Time
	notBefore time.Time // see lateCallWindow
}

// lateCallWindow is how long after a start the last calls of a killed agent may
// still take effect. Until then the agent prunes nothing: it could find that an
// object does not exist just before such a call creates it, and the object would
// stay (I9). The deletion of a whole work need not wait: the owner of such an
// object does not exist any more, so the cluster's garbage collector deletes it.
const lateCallWindow = 2 * time.Second

// deletionRecheck is how often a deletion without an end is ordered again: the
// agent may have the right to delete without the right to watch.
const deletionRecheck = 30 * time.Second

// prune orders the removal of objects that the work applied and that its manifests
// name no more.
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

// removalsPending reports whether a removal has not finished.
func (w *workState) removalsPending() bool {
	for _, r := range w.removals {
		if !r.finished {
			return true
		}
	}
	return false
}

// couldBeManifest reports whether the object may belong to a manifest whose kind is
// unknown at present. Such an object is not pruned.
func (w *workState) couldBeManifest(id identity) bool {
	for _, m := range w.manifests {
		if !m.mapped && m.rejected == "" && m.gvk.Group == id.Group && m.meta.Name == id.Name {
			return true
		}
	}
	return false
}

// addRemoval adds a removal of an object. When the object has one already, it only
// sets the uid that the removal lacks.
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

// finishRemoval marks a removal as finished. The removal stays in the list until
// the AMW does not list the object any more; otherwise prune would begin it again.
func (c *core) finishRemoval(w *workState, key objectKey, r *removal) {
	r.finished = true
	delete(w.possible, key.identity())
	delete(w.durablePossible, key.identity())
	c.stopWaitingForObject(key, w.id)
}

// continueRemoval orders the next call of a removal, when one is due.
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
	c.ensureWatch(key.GroupVersionResource, watchMetadata)
	uid := types.UID(r.ref.UID)
	c.emit(effRemove{
		id: w.id, key: key, uid: uid, owner: owner, amw: w.amw, obs: live,
		release: w.spec.Deleting && !ownsObject(key.identity(), w.spec.Bundle.DeleteOption),
	})
}

// handleRemoved handles the answer to a removal.
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
	case ev.outcome == removalGone:
		delete(w.applied, ev.key)
		c.finishRemoval(w, ev.key, r)
	default:
		r.failures = 0
		r.retryAt = c.now.Add(deletionRecheck)
		c.wakeAt(r.retryAt, w.id)
	}
	c.advance(w)
}

// tearDown orders the next due calls that remove all objects of a work and its AMW,
// and ends the removal (finishTeardown) when nothing is left. advance calls it after
// each event until then. A work is torn down because its source deletes it, or
// because somebody deleted its AMW; in the second case the work is applied again.
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
				delete(w.removals, key) // checked again
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
				c.addRemoval(w, r) // sets the uid
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
			w.amwCallInFlight = false // the agent's finalizer is removed already; the watch shows the end
			return
		}
		c.emit(effFinalizeAMW{w.id, w.amw, amw.uid, stay})
		return
	}
	c.finishTeardown(w)
}

// recordRemainingEvery is the least time between two writes of recordRemaining: a
// thousand objects that end one by one cause a few writes.
const recordRemainingEvery = time.Second

// recordRemaining removes deleted objects from the AMW's list, so that it shows
// which objects the deletion still waits for. It changes only the AMW: the store
// keeps all objects of the work until the removal ends.
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

// reportDeleting reports that the removal has begun, with the last status of the
// manifests.
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

// possibleObjects lists every object that the work may have created.
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

// finishTeardown ends tearDown: no object that the AMW or the store lists exists any
// more. A deleted work that had another AMW before is torn down with that AMW, too;
// after the last one the deletion is acknowledged. When only the AMW was deleted, the
// manifests are applied again.
func (c *core) finishTeardown(w *workState) {
	if f := c.formerAMW(w); f != nil && w.spec.Deleting { // it may still own objects
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
	if !w.spec.Deleting { // somebody deleted its AMW: apply the work again
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
		w.unknownToServer, w.spec = false, nil // a spec arrived meanwhile
		c.advance(w)
		return
	}
	c.releaseName(w)
	delete(c.works, w.id)
	c.deleted.add(gone, c.now)
	c.emit(effPersist{rec: record{ID: w.id, Drop: true}})
	c.out.put(w.id, outgoing{deleted: gone})
	if w.specRefused {
		// A newer spec arrived during the removal and was refused: request it.
		c.emit(effResync{c.specVersions()})
	}
}
