package clm

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/store"
)

// This file has the pure decisions of requests: functions of the stored resource, the
// request and a given time.

// create makes the document of a new resource. Its status has no reports.
func (e *Entity) create(id, name, scope string, spec declared, now time.Time) (store.Document, error) {
	spec.UpdatedTime = now
	d := store.Document{Kind: e.storeKind(), ID: id, Scope: scope, Name: name, CreatedAt: now}
	seen := observed{Conditions: []status.Condition{}, Reports: []status.Report{}}
	first := d
	first.Generation = 1
	var err error
	if seen.Conditions, err = e.conditions(first, spec, seen, status.NoChildren, status.KeepPrevious); err != nil {
		return d, err
	}
	return d, encode(&d, spec, seen)
}

// encode sets spec and status of a document.
func encode(d *store.Document, spec declared, seen observed) (err error) {
	if d.Spec, err = spec.append(make([]byte, 0, len(spec.Spec)+512)); err != nil {
		return err
	}
	encodeStatus(d, spec, seen)
	return nil
}

// author is the caller who makes a generation: its name, and the traceparent of its
// request, "" if the request has none.
type author struct{ name, trace string }

func authorOf(ctx context.Context) author {
	return author{callerOf(ctx).Name, trace.Parent(ctx)}
}

// change has the members that a PATCH sets; nil members stay.
type change struct {
	spec       json.RawMessage
	labels     api.Labels
	references api.References
}

// patch applies a change. If the resource has all wanted values already, patch changes
// nothing, and the generation stays (I3). A resource that is being deleted is an error.
func (e *Entity) patch(d *store.Document, c change, by author, now time.Time) error {
	if d.DeletedAt != nil {
		return errDeleting(e, d.ID)
	}
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	next := spec
	if c.spec != nil {
		next.Spec, next.isCompact = c.spec, false
	}
	if c.labels != nil {
		next.Labels = c.labels
	}
	if c.references != nil {
		next.References = c.references
	}
	if sameSpec(spec, next) {
		return nil
	}
	next.UpdatedBy, next.UpdatedTime, next.Traceparent = by.name, now, by.trace
	return e.replaceSpec(d, next, status.NoChildren)
}

// sameSpec reports whether two specs have the same spec, labels and references.
func sameSpec(a, b declared) bool {
	equal, err := store.SameJSON(a.Spec, b.Spec)
	return err == nil && equal && maps.Equal(a.Labels, b.Labels) && maps.EqualFunc(a.References, b.References,
		slices.Equal)
}

// markDeleted sets the deletion time of a resource, which makes a new generation. For a
// resource that is being deleted already, markDeleted changes nothing.
func (e *Entity) markDeleted(d *store.Document, children status.Children, by author, now time.Time) error {
	if d.DeletedAt != nil {
		return nil
	}
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	d.DeletedAt = &now
	spec.DeletedBy, spec.UpdatedBy, spec.UpdatedTime, spec.Traceparent = by.name, by.name, now, by.trace
	spec.References = nil // the deletion of referenced resources need not wait for this one
	return e.replaceSpec(d, spec, children)
}

// repeatDeletion sets the updated_time of a resource that is being deleted to the time of a repeated
// DELETE, as the original does. It makes neither a new generation nor a new version.
func (e *Entity) repeatDeletion(d *store.Document, children status.Children, now time.Time) error {
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return err
	}
	seen.DeletionRepeated = now
	if seen.Conditions, err = e.conditions(*d, spec, seen, children, status.KeepPrevious); err != nil {
		return err
	}
	encodeStatus(d, spec, seen)
	return nil
}

// replaceSpec gives a resource another spec, for which the store makes the next
// generation, and the conditions of that generation.
func (e *Entity) replaceSpec(d *store.Document, spec declared, children status.Children) error {
	seen, err := observedOf(*d)
	if err != nil {
		return err
	}
	next := *d
	next.Generation++
	if seen.Conditions, err = e.conditions(next, spec, seen, children, status.KeepPrevious); err != nil {
		return err
	}
	return encode(d, spec, seen)
}

// conditions computes the conditions of a resource from its reports. d has the generation
// that the resource will have. onFailure is that of status.Mapper.Map.
func (e *Entity) conditions(d store.Document, spec declared, seen observed,
	children status.Children, onFailure status.OnFailure) ([]status.Condition, error) {
	resource := e.statusResource(d, spec, children)
	resource.UpdatedAt = seen.updatedTime(spec)
	conditions := []status.Condition{}
	// A kind without required adapters has conditions from its first report on, as in the original.
	if len(e.RequiredAdapters) > 0 || status.AnyCounts(seen.Reports) {
		conditions = status.Aggregate(resource, seen.Reports, seen.Conditions)
	}
	if e.mapper.Empty() {
		return conditions, nil
	}
	var document map[string]any
	if err := encode(&d, spec, observed{Conditions: conditions}); err != nil {
		return nil, err
	}
	wire, err := e.render(d)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(wire, &document); err != nil {
		return nil, err
	}
	// The cost limit of the rules bounds the call, so that it needs no context.
	mapped, err := e.mapper.Map(context.Background(), resource, document, seen.Reports, seen.Conditions, onFailure)
	return append(conditions, mapped...), err
}

// statusResource returns the properties of a resource on which its conditions depend.
func (e *Entity) statusResource(d store.Document, spec declared, children status.Children) status.Resource {
	return status.Resource{
		Generation: int32(d.Generation), UpdatedAt: spec.UpdatedTime, Deleting: d.DeletedAt != nil,
		Children: children, Required: e.RequiredAdapters,
	}
}

// reported is the outcome of a report.
type reported struct {
	verdict status.Verdict
	report  status.Report // in its stored form
	done    bool          // the report completes the deletion: remove the resource
}

// isStored reports whether the verdict stores the report.
func (r reported) isStored() bool {
	return r.verdict == status.Stored || r.verdict == status.Aggregated
}

// applyReport applies an adapter's report to a document. Only the verdicts Stored and Aggregated change the document.
func (e *Entity) applyReport(d *store.Document, r status.Report, tie status.Tie, children status.Children,
	now time.Time) (reported, error) {
	spec, err := declaredOf(*d)
	if err != nil {
		return reported{}, err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return reported{}, err
	}
	i, have := seen.find(r.Adapter)
	r.CreatedAt = now
	var stored *status.Report
	if have {
		before := seen.Reports[i]
		stored, r.CreatedAt = &before, before.CreatedAt
	}
	next, verdict, err := status.Judge(int32(d.Generation), stored, r, tie)
	if e, ok := errors.AsType[*status.InvalidError](err); ok {
		return reported{}, fieldError(http.StatusBadRequest, codeValidation, e.Field, "required", e.Message)
	}
	out := reported{verdict: verdict, report: next}
	if err != nil || verdict == status.Discarded {
		return out, err
	}
	if verdict != status.Repeated {
		seen.replace(next)
	}
	if verdict == status.Aggregated {
		if seen.Conditions, err = e.conditions(*d, spec, seen, children, status.ReturnError); err != nil {
			return out, err
		}
	}
	out.done = status.Removable(e.statusResource(*d, spec, children), seen.Reports)
	if verdict != status.Repeated {
		encodeStatus(d, spec, seen) // the spec stays
	}
	return out, nil
}

// applyChildRemoval computes the conditions of a resource whose child was removed. done is
// true if the deletion of the resource is complete.
func (e *Entity) applyChildRemoval(d *store.Document, children status.Children) (done bool, err error) {
	spec, err := declaredOf(*d)
	if err != nil {
		return false, err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return false, err
	}
	if seen.Conditions, err = e.conditions(*d, spec, seen, children, status.KeepPrevious); err != nil {
		return false, err
	}
	done = status.Removable(e.statusResource(*d, spec, children), seen.Reports)
	seen.EndedWithChild = done
	encodeStatus(d, spec, seen)
	return done, nil
}

// errDeleting returns the error for a change of a resource that is being deleted.
func errDeleting(e *Entity, id string) error {
	return rest.Errorf(http.StatusConflict, codeState, "%s %s is being deleted; it cannot be changed any more", e.Kind,
		id)
}
