package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// spec is one work as its source last ordered it.
type spec struct {
	ID         work.ID `json:"id"`
	Generation int64   `json:"generation"`
	// ce-source of the event; statuses name it as their original source
	Source   string      `json:"source"`
	Metadata string      `json:"metadata,omitempty"` // the source's ObjectMeta, JSON; sent back with statuses
	Bundle   work.Bundle `json:"bundle"`
	Hash     string      `json:"hash"` // of metadata and data as they came
	Deleting bool        `json:"deleting,omitempty"`
	Life     string      `json:"life,omitempty"` // of the server's database that ordered it
	Received time.Time   `json:"received"`
}

// decodeSpec completes a spec that has the members of an event's extensions and the time of its receipt: it decodes the
// event's data. A deletion needs no data: the server may no longer have it.
func decodeSpec(s spec, data []byte) (*spec, error) {
	s.Hash = hexSHA256(append([]byte(s.Metadata+"\x00"), data...))
	switch {
	case s.ID == "":
		return nil, fmt.Errorf("a spec event names no %s", work.ExtResourceID)
	case s.Generation < 0:
		return nil, fmt.Errorf("work %s: generation %d is negative", s.ID, s.Generation)
	case len(data) == 0 && s.Deleting:
		return &s, nil
	}
	if err := json.Unmarshal(data, &s.Bundle); err != nil {
		if s.Deleting {
			s.Bundle = work.Bundle{}
			return &s, nil
		}
		return nil, fmt.Errorf("work %s generation %d: %w", s.ID, s.Generation, err)
	}
	return &s, nil
}

// verdict is the decision about an arriving spec.
type verdict int

const (
	verdictTake    verdict = iota // the agent stores it
	verdictSame                   // known already
	verdictStale                  // older than the stored spec
	verdictRefused                // the work is being deleted
)

// compareSpecs decides about an arriving spec. Generation 0 has no version and always
// counts as new.
func compareSpecs(known, in *spec) verdict {
	switch {
	case known == nil:
		return verdictTake
	case known.Deleting && in.Deleting:
		return verdictSame
	case known.Deleting:
		return verdictRefused
	case in.Generation != 0 && in.Generation < known.Generation:
		return verdictStale
	case in.Deleting:
		return verdictTake
	case in.Generation == known.Generation && in.Hash == known.Hash && in.Life == known.Life:
		return verdictSame
	}
	return verdictTake
}

// ownsObject reports whether the work owns the object. Otherwise the object stays
// when the work is deleted.
func ownsObject(id identity, o *workv1.DeleteOption) bool {
	if o == nil {
		return true
	}
	switch o.PropagationPolicy {
	case workv1.DeletePropagationPolicyTypeForeground:
		return true
	case workv1.DeletePropagationPolicyTypeOrphan:
		return false
	}
	if o.SelectivelyOrphan == nil {
		return true
	}
	for _, r := range o.SelectivelyOrphan.OrphaningRules {
		if (identity{r.Group, r.Resource, r.Namespace, r.Name}) == id {
			return false
		}
	}
	return true
}

// originalSourceLabel is the label by which OCM's agents know a work's source.
const originalSourceLabel = "cloudevents.open-cluster-management.io/originalsource"

// labels returns the labels of the work's AppliedManifestWork: the labels that the
// source set on the work, and one with the source's name. It leaves invalid labels out.
func (s *spec) labels() map[string]string {
	var md struct {
		Labels map[string]string `json:"labels"`
	}
	_ = json.Unmarshal([]byte(s.Metadata), &md) // the source's own; a work without labels is a work
	labels := map[string]string{}
	maps.Copy(labels, md.Labels)
	labels[originalSourceLabel] = s.Source
	maps.DeleteFunc(labels, func(k, v string) bool {
		return len(validation.IsQualifiedName(k)) > 0 || len(validation.IsValidLabelValue(v)) > 0
	})
	return labels
}

// progress records which steps the agent has completed for a work, so that it does
// not repeat them after a restart. The agent writes it after the step. If the process
// dies before, the agent repeats the step, which changes nothing.
type progress struct {
	Generation int64             `json:"generation"`
	Objects    []appliedManifest `json:"objects,omitempty"`
	AppliedAt  time.Time         `json:"appliedAt,omitzero"`
	// Possible lists objects that the agent may have created and that the
	// AppliedManifestWork may not list yet.
	Possible []resourceRef `json:"maybe,omitempty"`
}

// appliedManifest is one manifest as it was applied.
type appliedManifest struct {
	Ordinal     int         `json:"o"`
	Ref         resourceRef `json:"ref"`
	Hash        string      `json:"hash"` // of the manifest and its options
	Fingerprint string      `json:"fp"`   // of the object afterwards
	// Manager is the field manager that the work named: the fingerprint counts
	// its fields, too. Absent when it was one of the agent's own.
	Manager string `json:"m,omitempty"`
}

// sentStatus is a work's status as the server is to know it.
type sentStatus struct {
	Status     workv1.ManifestWorkStatus `json:"status"`
	Generation int64                     `json:"generation"`
	Hash       string                    `json:"hash"`
}

// statusHash returns the hash of a status as JSON with its keys in order, as
// OCM's SDK computes it. Both sides compare it in a status resync.
func statusHash(s workv1.ManifestWorkStatus) string {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		panic(fmt.Sprintf("agent: a status that has no fields: %v", err)) // strings, numbers and times only
	}
	b, err := json.Marshal(fields)
	if err != nil {
		panic(fmt.Sprintf("agent: a status that has no JSON: %v", err))
	}
	return hexSHA256(b)
}
