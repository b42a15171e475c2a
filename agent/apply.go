package agent

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// advance does for a work whatever can be done now. It may be called at any
// time and any number of times.
func (c *core) advance(w *workState) {
	if !c.amwsSynced || c.apiDown || c.works[w.id] != w {
		return
	}
	if w.spec == nil || w.next != nil && !w.silent {
		if w.busy > 0 || w.amwBusy || !w.nextDurable {
			return
		}
		c.adopt(w)
	}
	amw := c.amwOf(w)
	if w.spec.Deleting || w.tornDown || amw != nil && amw.deleting {
		c.tearDown(w)
		return
	}
	mapped := c.mapManifests(w)
	if mapped {
		c.arrived(w)
	}
	exists := c.ensureAMW(w, amw)
	if !exists && w.amwErr != "" {
		c.report(w) // nothing can be applied: say why
	}
	if !mapped || !c.note(w, amw) || !exists || !c.applyDue(w, amw) {
		return
	}
	c.report(w)
	if c.takeOverFormer(w, amw) {
		return
	}
	if !w.allComplete() {
		c.prune(w, amw)
	}
	c.recordAMW(w, amw)
}

// ensureAMW reports whether the work's AppliedManifestWork exists.
func (c *core) ensureAMW(w *workState, amw *amwState) bool {
	if w.amw == "" {
		w.amwErr = "other works have all names that its AppliedManifestWork could have"
		return false
	}
	if (amw == nil || amw.foreign || !amw.saysMaker(w.id)) && !w.amwBusy && !w.amwDue.After(c.now) {
		w.amwBusy = true
		c.do(effCreateAMW{w.id, w.amw, w.spec.labels()})
	}
	return amw != nil
}

// mapManifests reports whether every kind is known, or known not to be there.
func (c *core) mapManifests(w *workState) bool {
	all := true
	for _, m := range w.manifests {
		all = c.mapManifest(w, m) && all
	}
	return all
}

// arrived gives up the interest in what was loaded: manifests and removals
// have theirs now.
func (c *core) arrived(w *workState) {
	for _, key := range w.loaded {
		if _, removing := w.removing[key]; !removing {
			c.unwait(key, w.id)
		}
	}
	w.loaded = nil
}

// note writes down what may come to exist, before it does. It reports whether
// that is on disk.
func (c *core) note(w *workState, amw *amwState) bool {
	if w.noting {
		return false
	}
	var fresh []identity
	for _, m := range w.manifests {
		if !m.mapped || m.broken != "" || m.strategy.readOnly() || c.complete(w, m) {
			continue
		}
		id := m.key.identity()
		if _, done := w.done[m.key]; done || w.noted[id] || amw != nil && amw.lists(id) &&
			(!w.recording || lists(w.record, id)) {
			continue
		}
		w.maybe[id] = refOf(m.key, "")
		fresh = append(fresh, id)
	}
	if len(fresh) == 0 {
		return true
	}
	w.noting = true
	c.do(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}, then: evNoted{w.id, fresh}})
	return false
}

func (a *amwState) lists(id identity) bool { return lists(a.applied, id) }

func lists(refs []resourceRef, id identity) bool {
	return slices.ContainsFunc(refs, func(r resourceRef) bool { return keyOf(r).identity() == id })
}

// applyDue orders every apply that is due. It reports whether all manifests
// have had their try, so that the work's state can be told.
func (c *core) applyDue(w *workState, amw *amwState) bool {
	settled := true
	early := false // a namespace or kind of this work has not had its try
	for _, m := range w.manifests {
		if !c.needs(w, m, amw) {
			continue
		}
		if !m.busy && m.due.After(c.now) {
			c.at(m.due, w.id)
			settled = settled && (m.attempted || c.objects[m.key].live != nil)
			continue
		}
		settled = false
		if isEarly(m.key.GroupResource()) {
			early = true
		}
	}
	for _, m := range w.manifests {
		if m.busy || m.due.After(c.now) || !c.needs(w, m, amw) || early && !isEarly(m.key.GroupResource()) {
			continue
		}
		c.apply(w, m, amw)
	}
	return settled && w.busy == 0 && c.known(w)
}

// needs says whether the manifest is to be written, or read.
func (c *core) needs(w *workState, m *manifestState, amw *amwState) bool {
	if m.broken != "" || !m.mapped {
		return false
	}
	if m.busy {
		return true
	}
	if c.complete(w, m) {
		return c.unseen(m)
	}
	if m.repair || w.executor() != nil && !m.allowed.After(c.now) {
		return true
	}
	if m.strategy.readOnly() {
		return c.objects[m.key].live == nil
	}
	return w.done[m.key].Hash != m.hash(amw) || c.unseen(m)
}

// known says whether the state of every object that was applied is known, as
// it is not between a restart and the first answer of the watches.
func (c *core) known(w *workState) bool {
	for _, m := range w.manifests {
		if !m.mapped || m.broken != "" || m.attempted || m.readErr != "" {
			continue
		}
		if c.unknown(m) {
			return false
		}
	}
	return true
}

// hash names what is applied for the manifest: another AMW is another owner.
func (m *manifestState) hash(amw *amwState) string { return m.content + ":" + string(amw.uid) }

// isEarly says whether objects of the kind come before the rest of their
// work, which may need them.
func isEarly(r schema.GroupResource) bool {
	return r == namespaces.GroupResource() || r == customResources.GroupResource()
}

var (
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	customResources = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
)

func (c *core) apply(w *workState, m *manifestState, amw *amwState) {
	o := c.objects[m.key]
	m.busy = true
	w.busy++
	o.writing++
	_, before := w.done[m.key]
	e := effApply{
		id: w.id, ordinal: m.ordinal, key: m.key, gvk: m.gvk, manifest: m.raw, executor: w.executor(),
		owners: c.owners(o), owner: amw.uid, owned: m.owned, hash: m.hash(amw), strategy: m.strategy,
		read: m.strategy.readOnly() || c.complete(w, m) || !m.repair && w.done[m.key].Hash == m.hash(amw),
		look: o.live == nil && (before || amw.lists(m.key.identity())) || o.live != nil && o.live.carries,
	}
	e.ask = e.read && !c.unknown(m)
	c.do(e)
}

// owners are the AMWs of all works that own the object. Leaving one out would
// take its ownership away: all works apply with the same field manager.
func (c *core) owners(o *object) []metav1.OwnerReference {
	var refs []metav1.OwnerReference
	for id, m := range o.claims {
		if amw := c.amwOf(c.works[id]); amw != nil && m.owned && !amw.deleting && !m.strategy.readOnly() {
			refs = append(refs, ownerReference(c.cfg.hubHash+"-"+string(amw.name), amw.uid))
		}
	}
	slices.SortFunc(refs, func(a, b metav1.OwnerReference) int { return cmp.Compare(a.Name, b.Name) })
	return refs
}

// applied takes the answer to an apply.
func (c *core) applied(ev evApplied) {
	w := c.works[ev.id]
	o := c.objects[ev.key]
	if o != nil {
		o.writing--
	}
	if w == nil {
		return
	}
	w.busy--
	var m *manifestState
	if ev.ordinal < len(w.manifests) && w.manifests[ev.ordinal].key == ev.key {
		m = w.manifests[ev.ordinal]
		m.busy, m.repair = false, false
	}
	if ev.obs != nil && o != nil {
		o.see(ev.obs)
	}
	switch {
	case ev.err == nil:
		if m == nil {
			break
		}
		m.attempted, m.failures, m.due = true, 0, time.Time{}
		m.err, m.reason, m.readErr = "", "", ""
		c.stopWaiting(w, m)
		if w.executor() != nil {
			m.allowed = c.now.Add(allowedRecheck)
			c.at(m.allowed, w.id)
		}
		if !ev.read && ev.obs != nil {
			if o != nil && m.strategy.writes() {
				clear(o.expected)
				o.expect(ev.obs.fingerprint)
			}
			w.done[ev.key] = appliedManifest{Ordinal: m.ordinal, Ref: refOf(ev.key, ev.obs.uid), Hash: ev.hash,
				Fingerprint: ev.obs.fingerprint, Manager: m.strategy.namedManager()}
		}
		c.watch(ev.key.GroupVersionResource, m.rules != nil)
	case ev.err.kind == errTransport:
		c.transportFailed()
		if m != nil {
			m.failures++
			m.due = c.now.Add(backoffFor(ev.err, m.failures))
		}
	case m != nil:
		c.applyFailed(w, m, ev)
	}
	if o != nil && o.writing == 0 {
		c.checkDrift(o)
	}
	c.advance(w)
}

func (c *core) applyFailed(w *workState, m *manifestState, ev evApplied) {
	m.attempted = true
	m.failures++
	m.due = c.now.Add(backoffFor(ev.err, m.failures))
	m.reason, m.err, m.readErr = cmp.Or(ev.err.reason, workv1.AppliedManifestFailed), ev.err.message, ev.readErr
	m.allowed = time.Time{}
	switch ev.err.kind {
	case errNamespace:
		c.stopWaiting(w, m)
		key := objectKey{GroupVersionResource: namespaces, Name: ev.err.namespace}
		m.waitsFor = &key
		c.await(key, w.id)
		c.watch(namespaces, false)
	case errNoKind:
		// The kind went away: what discovery said no longer holds.
		delete(c.mappings, m.gvk)
		c.unclaim(w, m)
		m.mapped = false
		m.meta.Resource = ""
		c.do(effWatchKinds{})
	}
}

func (c *core) stopWaiting(w *workState, m *manifestState) {
	if m.waitsFor != nil {
		key := *m.waitsFor
		m.waitsFor = nil
		for _, other := range w.manifests {
			if other.waitsFor != nil && *other.waitsFor == key {
				return
			}
		}
		c.unwait(key, w.id)
	}
}

// recordAMW writes what exists by the work into its AMW, once everything has
// had its try.
func (c *core) recordAMW(w *workState, amw *amwState) {
	if w.amwBusy || w.recording || w.busy > 0 {
		return
	}
	want := c.appliedRefs(w)
	if slices.Equal(want, amw.applied) && !amw.evicting {
		c.forgetMaybe(w)
		return
	}
	if w.amwDue.After(c.now) {
		return
	}
	w.recording, w.record = true, want
	c.do(effRecordAMW{w.id, w.amw, amw.uid, want, amw.evicting})
}

// appliedRefs lists the objects of the work that exist, and those that are
// still on their way out.
func (c *core) appliedRefs(w *workState) []resourceRef {
	refs := []resourceRef{}
	listed := map[objectKey]bool{}
	for _, m := range w.manifests {
		if !m.mapped {
			continue
		}
		o := c.objects[m.key]
		switch {
		case o != nil && o.live != nil:
			if !o.live.exists {
				continue
			}
			refs = append(refs, refOf(m.key, o.live.uid))
		case w.done[m.key].Hash != "":
			refs = append(refs, w.done[m.key].Ref)
		default:
			continue
		}
		listed[m.key] = true
	}
	for key, r := range w.removing {
		if !listed[key] && !r.over {
			refs = append(refs, r.ref)
		}
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

// forgetMaybe drops the notes about what may exist, once the AMW lists what
// does.
func (c *core) forgetMaybe(w *workState) {
	if len(w.maybe) == 0 || w.pending() {
		return
	}
	clear(w.maybe)
	clear(w.noted)
	c.do(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}})
}

// amwDone takes the answer to a call about a work's AMW.
func (c *core) amwDone(ev evAMWDone) {
	w := c.works[ev.id]
	switch {
	case w == nil:
	case ev.op == amwRecord:
		w.recording = false
	default:
		w.amwBusy = false
	}
	if ev.err != nil {
		if ev.err.kind == errTransport {
			c.transportFailed()
		}
		if w != nil {
			if ev.err.kind != errTransport && (ev.op == amwCreate || ev.op == amwTakeOver) {
				w.amwErr = ev.err.message
			}
			w.amwFailures++
			w.amwDue = c.now.Add(backoffFor(ev.err, w.amwFailures))
			c.at(w.amwDue, w.id)
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
	if ev.ended != "" {
		c.dropAMW(ev.ended)
	}
	if ev.asked {
		if amw := c.amws[ev.name]; w != nil && amw != nil && !amw.deleting {
			w.amwDue = c.now.Add(recheck)
			c.at(w.amwDue, w.id)
		}
		c.advanceID(ev.id)
		return
	}
	if ev.amw == nil {
		c.dropAMW(ev.name)
		c.advanceID(ev.id)
		return
	}
	c.sawAMW(ev.amw)
}
