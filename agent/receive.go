package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// workState is one work: its spec, the objects that it applied, and the calls in
// flight.
type workState struct {
	id   work.ID
	spec *spec // the spec that is being applied; nil before the first one is durable

	// nextSpec replaces spec as soon as it is durable and no call is in flight.
	nextSpec    *spec
	nextDurable bool

	manifests     []*manifestState
	callsInFlight int // applies and removals

	// applied lists the manifests that the agent applied and whose objects exist,
	// as far as the agent knows.
	applied map[objectKey]appliedManifest
	// possible lists objects that the agent may have created and that the AMW
	// does not list yet; durablePossible is the part of it that is on disk. The
	// agent applies only objects that are on disk there, so that a crash between
	// an apply and its record in the AMW leaves nothing behind (I9, I12).
	possible          map[identity]resourceRef
	durablePossible   map[identity]bool
	recordingPossible bool
	// unclaimedLoaded are objects of applied that no manifest or removal observes
	// yet. They are observed from the start, so that the first listing shows them.
	unclaimedLoaded []objectKey
	// removals are the objects to delete or to release.
	removals map[objectKey]*removal

	amw                amwName       // the name of its AMW; "" before the first spec is applied
	amwErr             string        // why the AMW cannot be created, or cannot take over from a former one
	amwCallInFlight    bool          // a call that creates, takes over or deletes the AMW is in flight
	recordInFlight     bool          // effRecordAMW is in flight; nothing waits for it
	recordedRefs       []resourceRef // the list that it writes
	recordRemainingDue time.Time     // when recordRemaining may write again
	amwFailures        int
	amwDue             time.Time

	status    *sentStatus
	acked     string // hash of the status that the broker took last
	appliedAt time.Time

	// unknownToServer marks the removal of a work that only its AMW names: no
	// status is sent for it.
	unknownToServer bool
	// specRefused: a spec arrived while the work was being deleted.
	specRefused bool
	// teardownBegun: the removal of all objects has begun, and the manifests claim
	// none of them any more.
	teardownBegun bool
}

// manifestState is one manifest of the spec that is being applied.
type manifestState struct {
	ordinal     int
	raw         json.RawMessage
	gvk         schema.GroupVersionKind
	meta        workv1.ManifestResourceMeta
	contentHash string // hash of the manifest and its options
	rejected    string // why it can never be applied; "" when it can

	// Set once discovery knows its kind.
	mapped   bool
	key      objectKey
	owned    bool
	strategy strategy
	rules    *ruleset

	claimStep      int // the step in which the manifest claimed its object
	inFlight       bool
	attempted      bool // an apply of this generation was answered
	needsRepair    bool // the object drifted: apply it although the manifest is unchanged
	failures       int
	retryAt        time.Time
	err            string // of the last attempt
	reason         string
	readErr        string // why the object could not be read
	waitsForObject *objectKey
	// authorizedUntil is when the rights of the executor must be checked again.
	authorizedUntil time.Time
}

func (c *core) addWork(id work.ID) *workState {
	w := &workState{
		id:              id,
		applied:         map[objectKey]appliedManifest{},
		possible:        map[identity]resourceRef{},
		durablePossible: map[identity]bool{},
		removals:        map[objectKey]*removal{},
	}
	c.works[id] = w
	return w
}

// newestSpec is the newest spec that arrived, whether it is being applied or not.
func (w *workState) newestSpec() *spec {
	if w.nextSpec != nil {
		return w.nextSpec
	}
	if w.unknownToServer {
		return nil
	}
	return w.spec
}

// clearBackoffs makes all retries due now.
func (w *workState) clearBackoffs() {
	w.amwDue = time.Time{}
	for _, m := range w.manifests {
		m.retryAt = time.Time{}
	}
	for _, r := range w.removals {
		r.retryAt = time.Time{}
	}
}

// receiveSpec orders that an arriving spec is written to disk; evDurable then
// starts it. The acknowledgement of a known spec waits for the disk, too, since
// its first copy may not be there yet.
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
		// A deletion may come without data: keep the delete option that is known.
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

// progressOf returns the progress of the work for the store.
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

// beginNextSpec replaces the spec of the work. No call may be in flight.
func (c *core) beginNextSpec(w *workState) {
	fresh := w.spec == nil || w.spec.Generation != w.nextSpec.Generation
	restored := w.spec == nil && w.status != nil && w.status.Generation == w.nextSpec.Generation
	if fresh && !restored {
		w.appliedAt = time.Time{}
	}
	w.spec, w.nextSpec, w.nextDurable = w.nextSpec, nil, false
	c.chooseAMWName(w)
	if w.spec.Deleting {
		return // tearDown does the rest
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
	// The new claims come before the end of the old ones, so that the core keeps
	// observing the objects; removals keep observing the objects to remove.
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
	if err := work.CheckMemberNames(raw); err != nil { // from a Maestro that does not check
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
