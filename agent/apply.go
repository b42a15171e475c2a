package agent

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// advance orders every call that the work needs and that can be made now. It is
// idempotent: callers may call it at any time.
func (c *core) advance(w *workState) {
	if !c.amwsSynced || c.apiDown || c.works[w.id] != w {
		return
	}
	if w.spec == nil || w.nextSpec != nil && !w.unknownToServer {
		if w.callsInFlight > 0 || w.amwCallInFlight || !w.nextDurable {
			return
		}
		c.beginNextSpec(w)
	}
	amw := c.amwOf(w)
	if w.spec.Deleting || w.teardownBegun || amw != nil && amw.deleting {
		c.tearDown(w)
		return
	}
	mapped := c.mapManifests(w)
	if mapped {
		c.releaseLoaded(w)
	}
	exists := c.ensureAMW(w, amw)
	if !exists && w.amwErr != "" {
		c.report(w) // nothing can be applied: report the reason
	}
	if !mapped || !c.recordPossible(w, amw) || !exists || !c.applyDue(w, amw) {
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

// ensureAMW orders the creation of the work's AMW when it is missing or wrong. It
// reports whether the AMW exists.
func (c *core) ensureAMW(w *workState, amw *amwState) bool {
	if w.amw == "" {
		w.amwErr = "other works have all names that its AppliedManifestWork could have"
		return false
	}
	if (amw == nil || amw.foreign || !amw.belongsTo(w.id)) && !w.amwCallInFlight && !w.amwDue.After(c.now) {
		w.amwCallInFlight = true
		c.emit(effCreateAMW{w.id, w.amw, w.spec.labels()})
	}
	return amw != nil
}

// mapManifests orders discovery for unknown kinds. It reports whether discovery
// has answered for every kind.
func (c *core) mapManifests(w *workState) bool {
	all := true
	for _, m := range w.manifests {
		all = c.mapManifest(w, m) && all
	}
	return all
}

// releaseLoaded ends the observation of objects that load began, since by now
// manifests and removals observe the objects that they need.
func (c *core) releaseLoaded(w *workState) {
	for _, key := range w.unclaimedLoaded {
		if _, removing := w.removals[key]; !removing {
			c.stopWaitingForObject(key, w.id)
		}
	}
	w.unclaimedLoaded = nil
}

// recordPossible writes to disk which objects the work is about to create, so
// that a restarted agent finds them. It reports whether all of them are on disk.
func (c *core) recordPossible(w *workState, amw *amwState) bool {
	if w.recordingPossible {
		return false
	}
	var fresh []identity
	for _, m := range w.manifests {
		if !m.mapped || m.rejected != "" || m.strategy.readOnly() || c.isComplete(w, m) {
			continue
		}
		id := m.key.identity()
		if _, done := w.applied[m.key]; done || w.durablePossible[id] || amw != nil && amw.lists(id) &&
			(!w.recordInFlight || lists(w.recordedRefs, id)) {
			continue
		}
		w.possible[id] = refOf(m.key, "")
		fresh = append(fresh, id)
	}
	if len(fresh) == 0 {
		return true
	}
	w.recordingPossible = true
	c.emit(effPersist{rec: record{ID: w.id, Progress: c.progressOf(w)}, then: evPossibleDurable{w.id, fresh}})
	return false
}

func (a *amwState) lists(id identity) bool { return lists(a.applied, id) }

func lists(refs []resourceRef, id identity) bool {
	return slices.ContainsFunc(refs, func(r resourceRef) bool { return keyOf(r).identity() == id })
}

// applyDue orders every apply that is due. It reports whether all manifests were
// attempted, so that the status of the work can be reported.
func (c *core) applyDue(w *workState, amw *amwState) bool {
	settled := true
	early := false // a namespace or kind of this work was not attempted yet
	for _, m := range w.manifests {
		if !c.needsCall(w, m, amw) {
			continue
		}
		if !m.inFlight && m.retryAt.After(c.now) {
			c.wakeAt(m.retryAt, w.id)
			settled = settled && (m.attempted || c.objects[m.key].latest != nil)
			continue
		}
		settled = false
		if goesFirst(m.key.GroupResource()) {
			early = true
		}
	}
	for _, m := range w.manifests {
		if m.inFlight || m.retryAt.After(c.now) || !c.needsCall(w, m, amw) || early && !goesFirst(m.key.GroupResource()) {
			continue
		}
		c.apply(w, m, amw)
	}
	return settled && w.callsInFlight == 0 && c.allStatesKnown(w)
}

// needsCall reports whether the manifest must be written or its object read.
func (c *core) needsCall(w *workState, m *manifestState, amw *amwState) bool {
	if m.rejected != "" || !m.mapped {
		return false
	}
	if m.inFlight {
		return true
	}
	if c.isComplete(w, m) {
		return c.needsRead(m)
	}
	if m.needsRepair || w.executor() != nil && !m.authorizedUntil.After(c.now) {
		return true
	}
	if m.strategy.readOnly() {
		return c.objects[m.key].latest == nil || c.needsRead(m)
	}
	return w.applied[m.key].Hash != m.applyHash(amw) || c.needsRead(m)
}

// allStatesKnown reports whether the state of every applied object is known. It is
// unknown between a restart and the first listing of the watch.
func (c *core) allStatesKnown(w *workState) bool {
	for _, m := range w.manifests {
		if !m.mapped || m.rejected != "" || m.attempted || m.readErr != "" {
			continue
		}
		if c.stateUnknown(m) {
			return false
		}
	}
	return true
}

// applyHash identifies the written content of the manifest: its options, and the
// AMW that owns the object.
func (m *manifestState) applyHash(amw *amwState) string { return m.contentHash + ":" + string(amw.uid) }

// goesFirst reports whether objects of the kind are applied before the other
// objects of their work, which may need them.
func goesFirst(r schema.GroupResource) bool {
	return r == namespaces.GroupResource() || r == customResources.GroupResource()
}

var (
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	customResources = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
)

func (c *core) apply(w *workState, m *manifestState, amw *amwState) {
	o := c.objects[m.key]
	m.inFlight = true
	w.callsInFlight++
	o.writesInFlight++
	_, before := w.applied[m.key]
	e := effApply{
		id: w.id, ordinal: m.ordinal, key: m.key, gvk: m.gvk, manifest: m.raw, executor: w.executor(),
		owners: c.owners(o), owner: amw.uid, owned: m.owned, hash: m.applyHash(amw), strategy: m.strategy,
		onlyRead:  m.strategy.readOnly() || c.isComplete(w, m) || !m.needsRepair && w.applied[m.key].Hash == m.applyHash(amw),
		readFirst: o.latest == nil && (before || amw.lists(m.key.identity())) || o.latest != nil && o.latest.hasOwnMetadata,
	}
	e.onlyAuthorize = e.onlyRead && !c.stateUnknown(m)
	c.emit(e)
}

// owners returns references to the AMWs of all works that own the object. A write
// without one of them would remove that reference, since all works apply with the
// same field manager.
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

// handleApplied handles the answer to an apply.
func (c *core) handleApplied(ev evApplied) {
	w := c.works[ev.id]
	o := c.objects[ev.key]
	if o != nil {
		o.writesInFlight--
	}
	if w == nil {
		return
	}
	w.callsInFlight--
	var m *manifestState
	if ev.ordinal < len(w.manifests) && w.manifests[ev.ordinal].key == ev.key {
		m = w.manifests[ev.ordinal]
		m.inFlight, m.needsRepair = false, false
	}
	if ev.obs != nil && o != nil {
		o.keepIfNewer(ev.obs)
	}
	switch {
	case ev.err == nil:
		if m == nil {
			break
		}
		m.attempted, m.failures, m.retryAt = true, 0, time.Time{}
		m.err, m.reason, m.readErr = "", "", ""
		c.stopWaiting(w, m)
		if w.executor() != nil {
			m.authorizedUntil = c.now.Add(allowedRecheck)
			c.wakeAt(m.authorizedUntil, w.id)
		}
		if !ev.onlyRead && ev.obs != nil {
			if o != nil && m.strategy.writes() {
				clear(o.expected)
				o.expectFingerprint(ev.obs.fingerprint)
			}
			w.applied[ev.key] = appliedManifest{Ordinal: m.ordinal, Ref: refOf(ev.key, ev.obs.uid), Hash: ev.hash,
				Fingerprint: ev.obs.fingerprint, Manager: m.strategy.namedManager()}
		}
		c.ensureWatch(ev.key.GroupVersionResource, m.watchScope())
	case ev.err.kind == errTransport:
		c.startProbe()
		if m != nil {
			m.failures++
			m.retryAt = c.now.Add(backoffFor(ev.err, m.failures))
		}
	case m != nil:
		c.handleApplyFailure(w, m, ev)
	}
	if o != nil && o.writesInFlight == 0 {
		c.checkDrift(o)
	}
	c.advance(w)
}

func (c *core) handleApplyFailure(w *workState, m *manifestState, ev evApplied) {
	m.attempted = true
	m.failures++
	m.retryAt = c.now.Add(backoffFor(ev.err, m.failures))
	m.reason, m.err, m.readErr = cmp.Or(ev.err.reason, workv1.AppliedManifestFailed), ev.err.message, ev.readErr
	m.authorizedUntil = time.Time{}
	switch ev.err.kind {
	case errNamespace:
		c.stopWaiting(w, m)
		key := objectKey{GroupVersionResource: namespaces, Name: ev.err.namespace}
		m.waitsForObject = &key
		c.waitForObject(key, w.id)
		c.ensureWatch(namespaces, watchMetadata)
	case errNoKind:
		// The kind was removed: discovery has to run again.
		delete(c.mappings, m.gvk)
		c.unclaim(w, m)
		m.mapped = false
		m.meta.Resource = ""
		c.emit(effWatchKinds{})
	}
}

func (c *core) stopWaiting(w *workState, m *manifestState) {
	if m.waitsForObject != nil {
		key := *m.waitsForObject
		m.waitsForObject = nil
		for _, other := range w.manifests {
			if other.waitsForObject != nil && *other.waitsForObject == key {
				return
			}
		}
		c.stopWaitingForObject(key, w.id)
	}
}
