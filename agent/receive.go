package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// workState is one work: what is wanted, what was done, what is under way.
type workState struct {
	id   workID
	spec *spec // what is being acted on; nil before the first is durable

	// next replaces spec as soon as it is durable and nothing is under way.
	nextSpec    *spec
	nextDurable bool

	manifests     []*manifestState
	callsInFlight int // calls under way for this work

	// done is what was applied and still exists by our hand, as far as known.
	applied map[objectKey]appliedManifest
	// maybe is what may exist by our hand without the AMW listing it; noted
	// is the part of it that is on disk. Nothing is applied that is not noted,
	// so that a crash between an apply and its record in the AMW leaves
	// nothing behind (I9, I12).
	possible          map[identity]resourceRef
	durablePossible   map[identity]bool
	recordingPossible bool
	// loaded are objects in done that no manifest or removal claims yet: they
	// are of interest from the start, so that the first listing shows them.
	unclaimedLoaded []objectKey
	// removing is what has to go, or be released.
	removals map[objectKey]*removal

	amw                amwName       // the name of its AMW; "" before the first spec is acted on
	amwErr             string        // why the AMW cannot be made, or take over from a former one
	amwCallInFlight    bool          // a call that makes or ends the AMW is under way
	recordInFlight     bool          // its list is being written; nothing waits for that
	recordedRefs       []resourceRef // that list
	recordRemainingDue time.Time     // when the list of a work that is being deleted may be written again
	amwFailures        int
	amwDue             time.Time

	status    *sentStatus
	acked     string // hash of the status that the broker took last
	appliedAt time.Time

	// silent marks a removal that the cluster asked for, not the server.
	unknownToServer bool
	// refused says that a spec came while the work was being deleted.
	specRefused bool
	// tornDown says that the removal has begun, and claims are given up.
	teardownBegun bool
}

// manifestState is one manifest of the spec that is being acted on.
type manifestState struct {
	ordinal     int
	raw         json.RawMessage
	gvk         schema.GroupVersionKind
	meta        workv1.ManifestResourceMeta
	contentHash string // hash of the manifest and all options that touch it
	rejected    string // why it can never be applied, "" when it can

	// Known once its kind is mapped.
	mapped   bool
	key      objectKey
	owned    bool
	strategy strategy
	rules    *ruleset

	claimStep      int // the step in which it claimed its object
	inFlight       bool
	attempted      bool // it has a result in this generation
	needsRepair    bool // the object drifted: apply although nothing changed
	failures       int
	retryAt        time.Time
	err            string // of the last attempt
	reason         string
	readErr        string // why the object's state is unknown
	waitsForObject *objectKey
	// allowed is until when the executor's rights are taken as known.
	authorizedUntil time.Time
}

func (c *core) addWork(id workID) *workState {
	w := &workState{
		id: id, applied: map[objectKey]appliedManifest{}, possible: map[identity]resourceRef{}, durablePossible: map[identity]bool{}, removals: map[objectKey]*removal{},
	}
	c.works[id] = w
	return w
}

// latest is the newest spec that is known, acted on or not.
func (w *workState) newestSpec() *spec {
	if w.nextSpec != nil {
		return w.nextSpec
	}
	if w.unknownToServer {
		return nil
	}
	return w.spec
}

// forgive makes everything that waits after failures due.
func (w *workState) clearBackoffs() {
	w.amwDue = time.Time{}
	for _, m := range w.manifests {
		m.retryAt = time.Time{}
	}
	for _, r := range w.removals {
		r.retryAt = time.Time{}
	}
}

// receive takes a spec event: to disk, then to act on. The acknowledgement
// waits for the disk even for what is known already, since that may still be
// on its way there.
func (c *core) receiveSpec(ev evSpec) {
	in := ev.spec
	w := c.works[in.ID]
	var known *spec
	if w != nil {
		known = w.newestSpec()
	}
	switch compareSpecs(known, in) {
	case verdictSame, verdictStale:
		c.emit(effPersist{ack: ev.ack})
		return
	case verdictRefused:
		w.specRefused = true
		c.emit(effPersist{ack: ev.ack})
		return
	}
	if w == nil && c.deleted.isStale(in, c.now) {
		c.emit(effPersist{ack: ev.ack})
		return
	}
	if w == nil {
		w = c.addWork(in.ID)
	}
	if in.Deleting && len(in.Bundle.Manifests) == 0 && known != nil {
		// A deletion may come without data; how to delete is known.
		kept := *in
		kept.Bundle, kept.Metadata = known.Bundle, known.Metadata
		if kept.Source == "" {
			kept.Source = known.Source
		}
		in = &kept
	}
	w.nextSpec, w.nextDurable = in, false
	c.emit(effPersist{rec: record{ID: in.ID, Spec: in}, ack: ev.ack, then: evDurable{in.ID, in}})
}

// progressOf is what to write down about the work.
func (c *core) progressOf(w *workState) *progress {
	p := &progress{AppliedAt: w.appliedAt, Possible: slices.SortedFunc(maps.Values(w.possible), compareRefs)}
	if w.spec != nil {
		p.Generation = w.spec.Generation
	}
	for _, a := range w.applied {
		p.Objects = append(p.Objects, a)
	}
	slices.SortFunc(p.Objects, func(a, b appliedManifest) int { return compareRefs(a.Ref, b.Ref) })
	return p
}

// adopt starts to act on the next spec. Nothing is under way.
func (c *core) beginNextSpec(w *workState) {
	fresh := w.spec == nil || w.spec.Generation != w.nextSpec.Generation
	restored := w.spec == nil && w.status != nil && w.status.Generation == w.nextSpec.Generation
	if fresh && !restored {
		w.appliedAt = time.Time{}
	}
	w.spec, w.nextSpec, w.nextDurable = w.nextSpec, nil, false
	c.chooseAMWName(w)
	if w.spec.Deleting {
		return // the removal takes over from the manifests
	}
	old := w.manifests
	w.manifests = nil
	seen := map[identityOfManifest]bool{}
	for i, raw := range w.spec.Bundle.Manifests {
		m := parseManifest(i, raw)
		id := identityOfManifest{m.gvk, m.meta.Namespace, m.meta.Name}
		if m.rejected == "" && seen[id] {
			m.rejected = fmt.Sprintf("the work has another manifest of %s %s/%s", m.gvk.Kind, m.meta.Namespace,
				m.meta.Name)
		}
		seen[id] = true
		if m.rejected != "" {
			m.attempted, m.err, m.reason = true, m.rejected, workv1.AppliedManifestFailed
		}
		w.manifests = append(w.manifests, m)
		c.mapManifest(w, m)
	}
	// The new claims are made before the old ones are given up, so that what
	// is known of the objects is kept; so is that of those that have to go.
	for _, m := range old {
		if a, ok := w.applied[m.key]; ok && m.mapped && c.objects[m.key].claims[w.id] == m {
			c.addRemoval(w, a.Ref)
		}
		if m.mapped {
			c.unclaim(w, m)
		}
	}
}

type identityOfManifest struct {
	gvk             schema.GroupVersionKind
	namespace, name string
}

func parseManifest(ordinal int, raw json.RawMessage) *manifestState {
	m := &manifestState{ordinal: ordinal, raw: raw}
	m.meta.Ordinal = int32(ordinal)
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		m.rejected = err.Error()
		return m
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		m.rejected = err.Error()
		return m
	}
	m.gvk = gv.WithKind(head.Kind)
	m.meta.Group, m.meta.Version, m.meta.Kind = gv.Group, gv.Version, head.Kind
	m.meta.Namespace, m.meta.Name = head.Metadata.Namespace, head.Metadata.Name
	switch {
	case head.APIVersion == "" || head.Kind == "":
		m.rejected = "the manifest has no apiVersion or no kind"
	case head.Metadata.Name == "":
		m.rejected = "the manifest has no metadata.name"
	}
	return m
}

// mapManifest completes a manifest with what its kind's mapping says. It
// reports whether the mapping is known; when not, it is being asked for.
func (c *core) mapManifest(w *workState, m *manifestState) bool {
	if m.mapped || m.rejected != "" {
		return true
	}
	mp := c.mappings[m.gvk]
	if mp == nil {
		mp = &mapping{waitingWorks: map[workID]bool{}}
		c.mappings[m.gvk] = mp
	}
	if !mp.known {
		waits := m.attempted && m.retryAt.After(c.now)
		if waits && !mp.inFlight {
			return true
		}
		if !m.attempted && mp.err != "" && !mp.inFlight && c.now.Sub(mp.askedAt) < backoffFirst {
			c.handleUnknownKind(w, m, mp.err)
			return true
		}
		mp.waitingWorks[w.id] = true
		c.discover(m.gvk, mp)
		return false
	}
	if !mp.namespaced {
		m.meta.Namespace = ""
	} else if m.meta.Namespace == "" {
		m.meta.Namespace = "default"
	}
	m.mapped = true
	m.meta.Resource = mp.gvr.Resource
	m.key = objectKey{mp.gvr, m.meta.Namespace, m.meta.Name}
	m.owned = ownsObject(m.key.identity(), w.spec.Bundle.DeleteOption)
	config := matchConfig(m.key.identity(), w.spec.Bundle.ManifestConfigs)
	m.rules = c.rules.compiled(config.FeedbackRules, config.ConditionRules)
	var refused string
	if m.strategy, refused = strategyOf(config.UpdateStrategy, c.cfg.fieldManager); refused != "" {
		m.reject(workv1.AppliedManifestFailed, refused)
	}
	rulesKey := ""
	if m.rules != nil {
		rulesKey = m.rules.key
	}
	m.contentHash = hexSHA256(fmt.Appendf(append([]byte(nil), m.raw...), "\x00%v %s %s", m.owned, m.strategy.key(),
		rulesKey))[:32]
	c.claim(w, m)
	if a, ok := w.applied[m.key]; ok {
		c.objects[m.key].expectFingerprint(a.Fingerprint)
		c.ensureWatch(m.key.GroupVersionResource, m.rules != nil)
	}
	return true
}

func (m *manifestState) reject(reason, why string) {
	m.rejected, m.attempted, m.reason, m.err = why, true, reason, why
}

func (c *core) discover(gvk schema.GroupVersionKind, mp *mapping) {
	if !mp.inFlight {
		mp.inFlight, mp.askedAt = true, c.now
		c.emit(effDiscover{gvk})
	}
}

// unmapped notes that the server does not know the manifest's kind.
func (c *core) handleUnknownKind(w *workState, m *manifestState, why string) {
	m.attempted = true
	m.reason, m.err = workv1.AppliedManifestFailed, why
	m.failures++
	m.retryAt = c.now.Add(backoff(m.failures))
	c.wakeAt(m.retryAt, w.id)
	c.emit(effWatchKinds{}) // the kind may come; the shell does this once
}

// mapped takes discovery's answer.
func (c *core) handleMapped(ev evMapped) {
	mp := c.mappings[ev.gvk]
	if mp == nil {
		return
	}
	mp.inFlight = false
	waiting := mp.waitingWorks
	mp.waitingWorks = map[workID]bool{}
	if ev.err == nil || ev.err.kind != errTransport {
		mp.failures = 0
	}
	switch {
	case ev.err == nil:
		mp.known, mp.gvr, mp.namespaced, mp.err = true, ev.gvr, ev.namespaced, ""
	case ev.err.kind == errTransport:
		// Nothing was learnt. Ask again when the server answers.
		c.startProbe()
		mp.failures++
		for id := range waiting {
			c.wakeAt(c.now.Add(transportBackoff(mp.failures)), id)
		}
		return
	default:
		mp.err = ev.err.message
		for id := range waiting {
			if w := c.works[id]; w != nil {
				for _, m := range w.manifests {
					if m.gvk == ev.gvk && !m.mapped {
						c.handleUnknownKind(w, m, mp.err)
					}
				}
			}
		}
	}
	for id := range waiting {
		c.advanceByID(id)
	}
}

// rediscover asks again for the kinds that were not there.
func (c *core) rediscover() {
	for gvk, mp := range c.mappings {
		if !mp.known && !mp.inFlight && mp.err != "" {
			for id, w := range c.works {
				for _, m := range w.manifests {
					if m.gvk == gvk && !m.mapped {
						mp.waitingWorks[id] = true
						m.retryAt = time.Time{}
					}
				}
			}
			if len(mp.waitingWorks) > 0 {
				c.discover(gvk, mp)
			}
		}
	}
}
