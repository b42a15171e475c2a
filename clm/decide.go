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

// What a request makes of a resource. These are functions of what is stored,
// of the request and of the time that they are given.

// create makes the document of a new resource. Its status is that nobody has
// reported yet.
func (e *Entity) create(id, name, scope string, spec declared, now time.Time) (store.Document, error) {
	spec.UpdatedTime = now
	d := store.Document{Kind: e.storeKind(), ID: id, Scope: scope, Name: name, CreatedAt: now}
	seen := observed{Conditions: []status.Condition{}, Reports: []status.Report{}}
	first := d
	first.Generation = 1
	var err error
	if seen.Conditions, err = e.conditions(first, spec, seen, false, true); err != nil {
		return d, err
	}
	return d, encode(&d, spec, seen)
}

func encode(d *store.Document, spec declared, seen observed) (err error) {
	if d.Spec, err = json.Marshal(spec); err != nil {
		return err
	}
	encodeStatus(d, spec, seen)
	return nil
}

// author is who makes a generation: a name, and the place in a trace of the
// request that asked for it, "" if it is in none.
type author struct{ name, trace string }

func authorOf(ctx context.Context) author {
	return author{callerOf(ctx).Name, trace.Parent(ctx)}
}

// change is what a PATCH wants to be true: nil is left as it is.
type change struct {
	spec       json.RawMessage
	labels     api.Labels
	references api.References
}

// patch applies a change. A resource that has all that is wanted already is
// left alone, its generation with it (I3).
func (e *Entity) patch(d *store.Document, c change, by author, now time.Time) error {
	if d.DeletedAt != nil {
		return deleting(e, d.ID)
	}
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	next := spec
	if c.spec != nil {
		next.Spec = c.spec
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
	return e.respecify(d, next, false)
}

func sameSpec(a, b declared) bool {
	equal, err := store.SameJSON(a.Spec, b.Spec)
	return err == nil && equal && maps.Equal(a.Labels, b.Labels) && maps.EqualFunc(a.References, b.References,
		slices.Equal)
}

// markDeleted asks for the deletion of a resource. children says that it has
// some. Asked for once, it keeps its time and generation.
func (e *Entity) markDeleted(d *store.Document, children bool, by author, now time.Time) error {
	if d.DeletedAt != nil {
		return nil
	}
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	d.DeletedAt = &now
	spec.DeletedBy, spec.UpdatedBy, spec.UpdatedTime, spec.Traceparent = by.name, by.name, now, by.trace
	spec.References = nil // what it refers to must not wait for it
	return e.respecify(d, spec, children)
}

// repeatDeletion moves the updated_time of a resource that is being deleted and is asked to go again, as
// the original does. It makes neither a generation nor a version.
func (e *Entity) repeatDeletion(d *store.Document, children bool, now time.Time) error {
	spec, err := declaredOf(*d)
	if err != nil {
		return err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return err
	}
	seen.DeletionRepeated = now
	if seen.Conditions, err = e.conditions(*d, spec, seen, children, true); err != nil {
		return err
	}
	encodeStatus(d, spec, seen)
	return nil
}

// respecify gives a resource another spec, which the store will make its next
// generation, and the conditions that follow.
func (e *Entity) respecify(d *store.Document, spec declared, children bool) error {
	seen, err := observedOf(*d)
	if err != nil {
		return err
	}
	next := *d
	next.Generation++
	if seen.Conditions, err = e.conditions(next, spec, seen, children, true); err != nil {
		return err
	}
	return encode(d, spec, seen)
}

// conditions are what a resource's reports come to. d has the generation that
// it is to have.
// keep is Mapper.Map's.
func (e *Entity) conditions(d store.Document, spec declared, seen observed, children, keep bool) ([]status.Condition,
	error) {
	standing := e.standing(d, spec, children)
	standing.UpdatedAt = seen.updatedTime(spec)
	conditions := []status.Condition{}
	// A kind without required adapters has conditions from its first report on, as in the original.
	if len(e.RequiredAdapters) > 0 || status.AnyCounts(seen.Reports) {
		conditions = status.Aggregate(standing, seen.Reports, seen.Conditions)
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
	// Its cost limit ends it, so no context has to.
	mapped, err := e.mapper.Map(context.Background(), standing, document, seen.Reports, seen.Conditions, keep)
	return append(conditions, mapped...), err
}

func (e *Entity) standing(d store.Document, spec declared, children bool) status.Resource {
	return status.Resource{
		Generation: int32(
			d.Generation), UpdatedAt: spec.UpdatedTime, Deleting: d.DeletedAt != nil, Children: children, Required: e.RequiredAdapters,
	}
}

// reported is what a report comes to.
type reported struct {
	verdict status.Verdict
	report  status.Report // as it is stored
	done    bool          // it completes the deletion: the resource goes
}

// take takes an adapter's report. children says whether the resource has any.
func (e *Entity) take(d *store.Document, r status.Report, tie status.Tie, children bool, now time.Time) (reported,
	error) {
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
		if seen.Conditions, err = e.conditions(*d, spec, seen, children, false); err != nil {
			return out, err
		}
	}
	out.done = status.Removable(e.standing(*d, spec, children), seen.Reports, children)
	if verdict != status.Repeated {
		encodeStatus(d, spec, seen) // the spec is left as it is
	}
	return out, nil
}

// reconsider works out the conditions of a resource whose children changed. It
// returns whether nothing keeps it any more.
func (e *Entity) reconsider(d *store.Document, children bool) (done bool, err error) {
	spec, err := declaredOf(*d)
	if err != nil {
		return false, err
	}
	seen, err := observedOf(*d)
	if err != nil {
		return false, err
	}
	if seen.Conditions, err = e.conditions(*d, spec, seen, children, true); err != nil {
		return false, err
	}
	done = status.Removable(e.standing(*d, spec, children), seen.Reports, children)
	seen.EndedWithChild = done
	encodeStatus(d, spec, seen)
	return done, nil
}

func deleting(e *Entity, id string) error {
	return rest.Errorf(http.StatusConflict, codeState, "%s %s is being deleted; it cannot be changed any more", e.Kind,
		id)
}
