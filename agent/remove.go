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
	ref      resourceRef
	busy     bool
	over     bool // it is gone, or not ours; the AMW may list it still
	failures int
	due      time.Time
	from     time.Time // it does not begin before
}

// lateness is how long after a start something may still come to be by the
// hand of an agent that was killed: its last calls were under way. Until then
// nothing is pruned, since what is not there yet could come after it was found
// to be gone, and stay (I9). A whole work that is deleted need not wait: the
// owner of what comes late is gone, and the cluster collects it.
const lateness = 2 * time.Second

// recheck is how often a deletion that does not end is asked for again: the
// watch may be refused where deleting is not.
const recheck = 30 * time.Second

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
		if wanted[id] || w.mayBe(id) {
			return
		}
		c.addRemoval(w, r)
	}
	for _, r := range amw.applied {
		consider(r)
	}
	for _, r := range w.maybe {
		consider(r)
	}
	for key, r := range w.removing {
		id := key.identity()
		if wanted[id] || r.over && !amw.lists(id) {
			delete(w.removing, key)
			c.unwait(key, w.id)
			continue
		}
		c.remove(w, key, r, amw.uid)
	}
}

// pending says whether something has yet to go.
func (w *workState) pending() bool {
	for _, r := range w.removing {
		if !r.over {
			return true
		}
	}
	return false
}

// mayBe says whether a manifest whose kind is not known now could be the
// object: such a one is not pruned.
func (w *workState) mayBe(id identity) bool {
	for _, m := range w.manifests {
		if !m.mapped && m.broken == "" && m.gvk.Group == id.Group && m.meta.Name == id.Name {
			return true
		}
	}
	return false
}

func (c *core) addRemoval(w *workState, r resourceRef) {
	key := keyOf(r)
	if known, ok := w.removing[key]; ok {
		if known.ref.UID == "" {
			known.ref.UID = r.UID
		}
		return
	}
	for other := range w.removing {
		if other.identity() == key.identity() {
			return
		}
	}
	w.removing[key] = &removal{ref: r}
	if c.now.Before(c.pruneFrom) && !w.spec.Deleting && !w.tornDown {
		w.removing[key].from = c.pruneFrom
	}
	c.await(key, w.id)
}

// overRemoval ends a removal. It stays listed until the AMW has forgotten the
// object, or it would begin again.
func (c *core) overRemoval(w *workState, key objectKey, r *removal) {
	r.over = true
	delete(w.maybe, key.identity())
	delete(w.noted, key.identity())
	c.unwait(key, w.id)
}

// remove carries one removal on.
func (c *core) remove(w *workState, key objectKey, r *removal, owner types.UID) {
	if r.busy || r.over {
		return
	}
	if r.from.After(c.now) && !w.tornDown {
		c.at(r.from, w.id)
		return
	}
	live := c.objects[key].live
	if live != nil && (!live.exists || r.ref.UID != "" && live.uid != types.UID(r.ref.UID)) {
		delete(w.done, key)
		c.overRemoval(w, key, r)
		return
	}
	if r.due.After(c.now) {
		c.at(r.due, w.id)
		return
	}
	r.busy = true
	w.busy++
	c.watch(key.GroupVersionResource, false)
	uid := types.UID(r.ref.UID)
	c.do(effRemove{
		id: w.id, key: key, uid: uid, owner: owner, amw: w.amw, obs: live,
		release: w.spec.Deleting && !owned(key.identity(), w.spec.Bundle.DeleteOption),
	})
}

// removed takes the answer to a removal.
func (c *core) removed(ev evRemoved) {
	w := c.works[ev.id]
	if w == nil {
		return
	}
	w.busy--
	r := w.removing[ev.key]
	if r == nil {
		c.advance(w)
		return
	}
	r.busy = false
	switch {
	case ev.err != nil:
		if ev.err.kind == errTransport {
			c.transportFailed()
		}
		r.failures++
		r.due = c.now.Add(backoffFor(ev.err, r.failures))
		c.at(r.due, w.id)
	case ev.was == removalGone:
		delete(w.done, ev.key)
		c.overRemoval(w, ev.key, r)
	default:
		r.failures = 0
		r.due = c.now.Add(recheck)
		c.at(r.due, w.id)
	}
	c.advance(w)
}

// tearDown removes all of a work: because its source deletes it, or because
// somebody deleted its AMW, after which it is applied again.
func (c *core) tearDown(w *workState) {
	if w.amwBusy && !w.tornDown {
		return
	}
	if !w.tornDown && w.busy > 0 {
		return
	}
	amw := c.amwOf(w)
	if !w.tornDown {
		w.tornDown = true
		for key, r := range w.removing {
			if r.over {
				delete(w.removing, key) // looked at again
			}
		}
		for _, r := range c.traces(w, amw) {
			c.addRemoval(w, r)
		}
		for _, m := range w.manifests {
			if m.mapped {
				c.unclaim(w, m)
				m.mapped = false
			}
		}
		c.arrived(w)
		if w.spec.Deleting && !w.silent && amw != nil {
			c.reportDeleting(w)
		}
	}
	var owner types.UID
	if amw != nil {
		owner = amw.uid
		for _, r := range amw.applied {
			if _, ok := w.removing[keyOf(r)]; ok {
				c.addRemoval(w, r) // learns the uid
			}
		}
		if !amw.deleting && !w.amwBusy && !w.amwDue.After(c.now) {
			w.amwBusy = true
			c.do(effDeleteAMW{w.id, w.amw, amw.uid})
		}
	}
	for key, r := range w.removing {
		c.remove(w, key, r, owner)
	}
	c.shrinkRecord(w, amw)
	if w.pending() || w.busy > 0 || w.amwBusy {
		return
	}
	if amw != nil {
		if !amw.deleting || w.amwDue.After(c.now) {
			return
		}
		w.amwBusy = true
		stay := amw.otherFinalizers()
		if len(stay) == len(amw.finalizers) {
			w.amwBusy = false // ours is gone already; the watch will show the end
			return
		}
		c.do(effFinalizeAMW{w.id, w.amw, amw.uid, stay})
		return
	}
	c.tornDown(w)
}

// shrinkEvery is the least time between two records of what is left of a work:
// a thousand objects that end one by one make a few writes.
const shrinkEvery = time.Second

// shrinkRecord takes the objects that are gone out of the AMW's list, so that it
// shows which ones the deletion still waits for. It changes only what is shown:
// what the store knows of the work stays until its end.
func (c *core) shrinkRecord(w *workState, amw *amwState) {
	if amw == nil || w.busy > 0 || w.amwBusy || w.recording || !w.pending() {
		return
	}
	left := []resourceRef{}
	for key, r := range w.removing {
		if r.over {
			continue
		}
		ref, live := r.ref, c.objects[key].live
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
	if w.shrinkDue.After(c.now) {
		c.at(w.shrinkDue, w.id)
		return
	}
	w.shrinkDue = c.now.Add(shrinkEvery)
	w.recording, w.record = true, left
	c.do(effRecordAMW{w.id, w.amw, amw.uid, left, amw.evicting})
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
	c.do(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w), Status: w.status}})
	c.out.put(w.id, outgoing{})
}

// traces is everything that may exist by the work.
func (c *core) traces(w *workState, amw *amwState) []resourceRef {
	var refs []resourceRef
	if amw != nil {
		refs = append(refs, amw.applied...)
	}
	for _, a := range w.done {
		refs = append(refs, a.Ref)
	}
	for _, r := range w.maybe {
		refs = append(refs, r)
	}
	return refs
}

// tornDown ends a removal: nothing of the work is left.
func (c *core) tornDown(w *workState) {
	if f := c.formerAMW(w); f != nil && w.spec.Deleting { // it may own something yet
		w.tornDown = false
		c.hold(w, f.name)
		c.advance(w)
		return
	}
	clear(w.removing)
	clear(w.done)
	clear(w.maybe)
	clear(w.noted)
	w.tornDown = false
	if !w.spec.Deleting { // its AMW was deleted by hand: apply it anew
		for _, m := range w.manifests {
			m.attempted, m.failures, m.due = m.broken != "", 0, time.Time{}
		}
		c.do(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}})
		c.advance(w)
		return
	}
	gone := w.spec
	if w.silent {
		if w.next == nil {
			c.unhold(w)
			delete(c.works, w.id)
			return
		}
		w.silent, w.spec = false, nil // a spec came meanwhile
		c.advance(w)
		return
	}
	c.unhold(w)
	delete(c.works, w.id)
	c.deleted.add(gone, c.now)
	c.do(effPersist{rec: record{ID: w.id, Drop: true}})
	c.out.put(w.id, outgoing{deleted: gone})
	if w.refused {
		// Something newer came for it while it went away, and was not taken.
		c.do(effResync{c.versions()})
	}
}
