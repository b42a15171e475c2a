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
	next        *spec
	nextDurable bool

	manifests []*manifestState
	busy      int // calls under way for this work

	// done is what was applied and still exists by our hand, as far as known.
	done map[objectKey]appliedManifest
	// maybe is what may exist by our hand without the AMW listing it; noted
	// is the part of it that is on disk. Nothing is applied that is not noted,
	// so that a crash between an apply and its record in the AMW leaves
	// nothing behind (I9, I12).
	maybe  map[identity]resourceRef
	noted  map[identity]bool
	noting bool
	// loaded are objects in done that no manifest or removal claims yet: they
	// are of interest from the start, so that the first listing shows them.
	loaded []objectKey
	// removing is what has to go, or be released.
	removing map[objectKey]*removal

	amw         amwName       // the name of its AMW; "" before the first spec is acted on
	amwErr      string        // why the AMW cannot be made, or take over from a former one
	amwBusy     bool          // a call that makes or ends the AMW is under way
	recording   bool          // its list is being written; nothing waits for that
	record      []resourceRef // that list
	shrinkDue   time.Time     // when the list of a work that is being deleted may be written again
	amwFailures int
	amwDue      time.Time

	status    *sentStatus
	acked     string // hash of the status that the broker took last
	appliedAt time.Time

	// silent marks a removal that the cluster asked for, not the server.
	silent bool
	// refused says that a spec came while the work was being deleted.
	refused bool
	// tornDown says that the removal has begun, and claims are given up.
	tornDown bool
}

// manifestState is one manifest of the spec that is being acted on.
type manifestState struct {
	ordinal int
	raw     json.RawMessage
	gvk     schema.GroupVersionKind
	meta    workv1.ManifestResourceMeta
	content string // hash of the manifest and all options that touch it
	broken  string // why it can never be applied, "" when it can

	// Known once its kind is mapped.
	mapped   bool
	key      objectKey
	owned    bool
	strategy strategy
	rules    *ruleset

	since     int // the step in which it claimed its object
	busy      bool
	attempted bool // it has a result in this generation
	repair    bool // the object drifted: apply although nothing changed
	failures  int
	due       time.Time
	err       string // of the last attempt
	reason    string
	readErr   string // why the object's state is unknown
	waitsFor  *objectKey
	// allowed is until when the executor's rights are taken as known.
	allowed time.Time
}

func (c *core) newWork(id workID) *workState {
	w := &workState{
		id: id, done: map[objectKey]appliedManifest{}, maybe: map[identity]resourceRef{}, noted: map[identity]bool{}, removing: map[objectKey]*removal{},
	}
	c.works[id] = w
	return w
}

// latest is the newest spec that is known, acted on or not.
func (w *workState) latest() *spec {
	if w.next != nil {
		return w.next
	}
	if w.silent {
		return nil
	}
	return w.spec
}

// forgive makes everything that waits after failures due.
func (w *workState) forgive() {
	w.amwDue = time.Time{}
	for _, m := range w.manifests {
		m.due = time.Time{}
	}
	for _, r := range w.removing {
		r.due = time.Time{}
	}
}

// receive takes a spec event: to disk, then to act on. The acknowledgement
// waits for the disk even for what is known already, since that may still be
// on its way there.
func (c *core) receive(ev evSpec) {
	in := ev.spec
	w := c.works[in.ID]
	var known *spec
	if w != nil {
		known = w.latest()
	}
	switch judge(known, in) {
	case verdictSame, verdictStale:
		c.do(effPersist{ack: ev.ack})
		return
	case verdictRefused:
		w.refused = true
		c.do(effPersist{ack: ev.ack})
		return
	}
	if w == nil && c.deleted.isStale(in, c.now) {
		c.do(effPersist{ack: ev.ack})
		return
	}
	if w == nil {
		w = c.newWork(in.ID)
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
	w.next, w.nextDurable = in, false
	c.do(effPersist{rec: record{ID: in.ID, Spec: in}, ack: ev.ack, then: evDurable{in.ID, in}})
}

// progressOf is what to write down about the work.
func (c *core) progressOf(w *workState) *progress {
	p := &progress{AppliedAt: w.appliedAt, Maybe: slices.SortedFunc(maps.Values(w.maybe), compareRefs)}
	if w.spec != nil {
		p.Generation = w.spec.Generation
	}
	for _, a := range w.done {
		p.Objects = append(p.Objects, a)
	}
	slices.SortFunc(p.Objects, func(a, b appliedManifest) int { return compareRefs(a.Ref, b.Ref) })
	return p
}

// adopt starts to act on the next spec. Nothing is under way.
func (c *core) adopt(w *workState) {
	fresh := w.spec == nil || w.spec.Generation != w.next.Generation
	restored := w.spec == nil && w.status != nil && w.status.Generation == w.next.Generation
	if fresh && !restored {
		w.appliedAt = time.Time{}
	}
	w.spec, w.next, w.nextDurable = w.next, nil, false
	c.nameAMW(w)
	if w.spec.Deleting {
		return // the removal takes over from the manifests
	}
	old := w.manifests
	w.manifests = nil
	seen := map[identityOfManifest]bool{}
	for i, raw := range w.spec.Bundle.Manifests {
		m := parseManifest(i, raw)
		id := identityOfManifest{m.gvk, m.meta.Namespace, m.meta.Name}
		if m.broken == "" && seen[id] {
			m.broken = fmt.Sprintf("the work has another manifest of %s %s/%s", m.gvk.Kind, m.meta.Namespace,
				m.meta.Name)
		}
		seen[id] = true
		if m.broken != "" {
			m.attempted, m.err, m.reason = true, m.broken, workv1.AppliedManifestFailed
		}
		w.manifests = append(w.manifests, m)
		c.mapManifest(w, m)
	}
	// The new claims are made before the old ones are given up, so that what
	// is known of the objects is kept; so is that of those that have to go.
	for _, m := range old {
		if a, ok := w.done[m.key]; ok && m.mapped && c.objects[m.key].claims[w.id] == m {
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
		m.broken = err.Error()
		return m
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		m.broken = err.Error()
		return m
	}
	m.gvk = gv.WithKind(head.Kind)
	m.meta.Group, m.meta.Version, m.meta.Kind = gv.Group, gv.Version, head.Kind
	m.meta.Namespace, m.meta.Name = head.Metadata.Namespace, head.Metadata.Name
	switch {
	case head.APIVersion == "" || head.Kind == "":
		m.broken = "the manifest has no apiVersion or no kind"
	case head.Metadata.Name == "":
		m.broken = "the manifest has no metadata.name"
	}
	return m
}

// mapManifest completes a manifest with what its kind's mapping says. It
// reports whether the mapping is known; when not, it is being asked for.
func (c *core) mapManifest(w *workState, m *manifestState) bool {
	if m.mapped || m.broken != "" {
		return true
	}
	mp := c.mappings[m.gvk]
	if mp == nil {
		mp = &mapping{waiting: map[workID]bool{}}
		c.mappings[m.gvk] = mp
	}
	if !mp.known {
		waits := m.attempted && m.due.After(c.now)
		if waits && !mp.busy {
			return true
		}
		if !m.attempted && mp.err != "" && !mp.busy && c.now.Sub(mp.asked) < backoffFirst {
			c.unmapped(w, m, mp.err)
			return true
		}
		mp.waiting[w.id] = true
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
	m.owned = owned(m.key.identity(), w.spec.Bundle.DeleteOption)
	config := matchConfig(m.key.identity(), w.spec.Bundle.ManifestConfigs)
	m.rules = c.rules.of(config.FeedbackRules, config.ConditionRules)
	var refused string
	if m.strategy, refused = strategyOf(config.UpdateStrategy, c.cfg.fieldManager); refused != "" {
		m.refuse(workv1.AppliedManifestFailed, refused)
	}
	rulesKey := ""
	if m.rules != nil {
		rulesKey = m.rules.key
	}
	m.content = hexSHA256(fmt.Appendf(append([]byte(nil), m.raw...), "\x00%v %s %s", m.owned, m.strategy.key(),
		rulesKey))[:32]
	c.claim(w, m)
	if a, ok := w.done[m.key]; ok {
		c.objects[m.key].expect(a.Fingerprint)
		c.watch(m.key.GroupVersionResource, m.rules != nil)
	}
	return true
}

func (m *manifestState) refuse(reason, why string) {
	m.broken, m.attempted, m.reason, m.err = why, true, reason, why
}

func (c *core) discover(gvk schema.GroupVersionKind, mp *mapping) {
	if !mp.busy {
		mp.busy, mp.asked = true, c.now
		c.do(effDiscover{gvk})
	}
}

// unmapped notes that the server does not know the manifest's kind.
func (c *core) unmapped(w *workState, m *manifestState, why string) {
	m.attempted = true
	m.reason, m.err = workv1.AppliedManifestFailed, why
	m.failures++
	m.due = c.now.Add(backoff(m.failures))
	c.at(m.due, w.id)
	c.do(effWatchKinds{}) // the kind may come; the shell does this once
}

// mapped takes discovery's answer.
func (c *core) mapped(ev evMapped) {
	mp := c.mappings[ev.gvk]
	if mp == nil {
		return
	}
	mp.busy = false
	waiting := mp.waiting
	mp.waiting = map[workID]bool{}
	if ev.err == nil || ev.err.kind != errTransport {
		mp.failures = 0
	}
	switch {
	case ev.err == nil:
		mp.known, mp.gvr, mp.namespaced, mp.err = true, ev.gvr, ev.namespaced, ""
	case ev.err.kind == errTransport:
		// Nothing was learnt. Ask again when the server answers.
		c.transportFailed()
		mp.failures++
		for id := range waiting {
			c.at(c.now.Add(transportBackoff(mp.failures)), id)
		}
		return
	default:
		mp.err = ev.err.message
		for id := range waiting {
			if w := c.works[id]; w != nil {
				for _, m := range w.manifests {
					if m.gvk == ev.gvk && !m.mapped {
						c.unmapped(w, m, mp.err)
					}
				}
			}
		}
	}
	for id := range waiting {
		c.advanceID(id)
	}
}

// rediscover asks again for the kinds that were not there.
func (c *core) rediscover() {
	for gvk, mp := range c.mappings {
		if !mp.known && !mp.busy && mp.err != "" {
			for id, w := range c.works {
				for _, m := range w.manifests {
					if m.gvk == gvk && !m.mapped {
						mp.waiting[id] = true
						m.due = time.Time{}
					}
				}
			}
			if len(mp.waiting) > 0 {
				c.discover(gvk, mp)
			}
		}
	}
}
