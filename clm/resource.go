package clm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/store"
)

// A resource is a document of the store: its kind is the entity's, its scope
// what its name is unique in (the owner's id, or the tenancy of one without
// owner), its generation the contract's.

// declared is what callers say of a resource, a document's spec. Whatever
// changes in it is a new generation.
type declared struct {
	Labels      api.Labels           `json:"labels"`
	Spec        json.RawMessage      `json:"spec"`
	References  api.References       `json:"references,omitempty"`
	Owner       *api.ObjectReference `json:"owner,omitempty"`
	Tenancy     map[string]string    `json:"tenancy"`
	CreatedBy   string               `json:"created_by"`
	UpdatedBy   string               `json:"updated_by"`
	UpdatedTime time.Time            `json:"updated_time"`
	DeletedBy   string               `json:"deleted_by,omitempty"`
	// Traceparent is the place in a trace of the request that made the
	// generation, "" if it was in none. What is done about it continues there.
	Traceparent string `json:"traceparent,omitempty"`
}

// TraceparentOf is the place in a trace of the request that made a resource's
// generation, as W3C has it, "" if it was in none. It decodes nothing for the
// others.
func TraceparentOf(d store.Document) string {
	if !bytes.Contains(d.Spec, []byte(`"traceparent"`)) {
		return ""
	}
	spec, err := declaredOf(d)
	if err != nil {
		return ""
	}
	return spec.Traceparent
}

// observed is what is known of it, a document's status.
type observed struct {
	Conditions []status.Condition `json:"conditions"`
	Reports    []status.Report    `json:"reports"` // by adapter
}

func declaredOf(d store.Document) (declared, error) {
	var r declared
	if err := json.Unmarshal(d.Spec, &r); err != nil {
		return r, fmt.Errorf("reading %s %s: %w", d.Kind, d.ID, err)
	}
	return r, nil
}

func observedOf(d store.Document) (observed, error) {
	var o observed
	if err := json.Unmarshal(d.Status, &o); err != nil {
		return o, fmt.Errorf("reading the status of %s %s: %w", d.Kind, d.ID, err)
	}
	return o, nil
}

// onlyObserved says that two statuses differ only in when adapters looked.
func onlyObserved(before, after json.RawMessage) bool {
	var a, b observed
	return json.Unmarshal(before, &a) == nil && json.Unmarshal(after, &b) == nil &&
		status.SameButTimes(a.Reports, b.Reports, a.Conditions, b.Conditions)
}

const basePath = "/api/hyperfleet/v1"

// href is a resource's own path: below its owner's, if it has one.
func (e *Entity) href(owner *api.ObjectReference, id string) string {
	if owner == nil {
		return basePath + "/" + e.Plural + "/" + id
	}
	return owner.Href + "/" + e.Plural + "/" + id
}

// reference is how others refer to a resource of the kind.
func (e *Entity) reference(owner *api.ObjectReference, id string) api.ObjectReference {
	return api.ObjectReference{ID: id, Kind: e.Kind, Href: e.href(owner, id)}
}

// render makes the wire form of a resource.
func (e *Entity) render(d store.Document) ([]byte, error) {
	spec, err := declaredOf(d)
	if err != nil {
		return nil, err
	}
	seen, err := observedOf(d)
	if err != nil {
		return nil, err
	}
	r := api.Resource{
		ID: d.ID, Kind: e.Kind, Name: d.Name, Href: e.href(spec.Owner, d.ID), Generation: int32(d.Generation),
		Labels: spec.Labels, Spec: spec.Spec, References: spec.References, OwnerReferences: spec.Owner, Tenancy: spec.Tenancy,
		Status:      api.ResourceStatus{Conditions: []api.ResourceCondition{}},
		CreatedTime: d.CreatedAt.UTC(), CreatedBy: spec.CreatedBy, UpdatedTime: spec.UpdatedTime, UpdatedBy: spec.UpdatedBy,
		DeletedBy: spec.DeletedBy,
	}
	for _, c := range seen.Conditions {
		r.Status.Conditions = append(r.Status.Conditions, api.ResourceCondition{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration,
			CreatedTime: c.CreatedTime, LastUpdatedTime: c.LastUpdatedTime, LastTransitionTime: c.LastTransitionTime,
		})
	}
	for _, a := range status.Awaited(e.standing(d, spec, false), seen.Reports) {
		r.Status.Awaiting = append(r.Status.Awaiting, api.Awaited{Adapter: a.Adapter, Since: a.Since, Reported: string(a.Reported)})
	}
	if d.DeletedAt != nil {
		t := d.DeletedAt.UTC()
		r.DeletedTime = &t
	}
	wire, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("rendering %s %s: %w", d.Kind, d.ID, err)
	}
	return wire, nil
}
