package adapter

import (
	"context"
	"errors"
	"log/slog"
	"maps"

	"atoll.dev/api/work"
)

// generationAnnotation has the generation of the resource for which an object was rendered.
const generationAnnotation = "hyperfleet.io/generation"

// applyResources is the third phase. The first failure to apply ends it; a failure to delete does
// not.
func (x *execution) applyResources(ctx context.Context) *StepError {
	if x.task.lifecycle {
		if err := x.discoverAll(ctx); err != nil {
			return err
		}
	}
	var first *StepError
	for i := range x.task.resources {
		r := &x.task.resources[i]
		out := ResourceResult{Name: r.name, Status: Success}
		deleting, err := x.reconcile(ctx, r, &out)
		if err != nil {
			out.Status, out.Err = Failed, err.Err
		}
		x.result.Resources = append(x.result.Resources, out)
		if x.blocked {
			return first
		}
		if err != nil {
			if first == nil {
				first = err
			} else {
				first = &StepError{first.Phase, first.Step, first.Op, errors.Join(first.Err, err)}
			}
			if !deleting {
				return first
			}
		}
	}
	return first
}

// discoverAll finds all objects before any decision, because the decision about one object may read
// the others. An object to delete that is not found may still exist (AbsenceChecker); then it is
// bound, so that deletions that wait for it keep waiting.
func (x *execution) discoverAll(ctx context.Context) *StepError {
	var absent []*resource
	for i := range x.task.resources {
		r := &x.task.resources[i]
		if yes, err := x.takesPart(ctx, r); err != nil {
			return &StepError{Resources, r.name, "evaluating when", err}
		} else if !yes {
			continue
		}
		object, err := x.discover(ctx, r, nil)
		if err != nil {
			return x.recordResourceFailure(r.name, "finding the object beforehand", err)
		}
		if object != nil {
			x.bind(r, object)
		} else if r.remove != nil {
			absent = append(absent, r)
		}
	}
	for _, r := range absent {
		if yes, err := x.evaluateCondition(ctx, r.remove); err != nil || !yes {
			continue // reconcile reports the error
		}
		if err := x.endDeletion(ctx, r, &ResourceResult{}); err != nil {
			return err
		}
	}
	return nil
}

// recordResourceFailure records the failure of a call for a resource. Failures of templates and
// expressions are recorded by failed alone.
func (x *execution) recordResourceFailure(name, op string, err error) *StepError {
	e := &StepError{Resources, name, op, err}
	x.adapter["resourceErrors"].(map[string]any)[name] = e.document()
	if x.adapter["executionError"] == nil {
		x.adapter["executionError"] = e.document()
	}
	return e
}

// reconcile applies one object or deletes it.
func (x *execution) reconcile(ctx context.Context, r *resource, out *ResourceResult) (deleting bool, _ *StepError) {
	if yes, err := x.takesPart(ctx, r); err != nil {
		return false, &StepError{Resources, r.name, "evaluating when", err}
	} else if !yes {
		out.Status, out.Operation, out.Reason = Skip, Skipped, "when is false" // not x.skip: nothing is missing
		return false, nil
	}
	if r.remove != nil { // before create.when: an object to delete must not count as skipped
		yes, err := x.evaluateCondition(ctx, r.remove)
		if err != nil {
			out.Operation = Deleted
			return true, &StepError{Resources, r.name, "evaluating lifecycle.delete.when", err}
		}
		if yes {
			out.Operation = Deleted
			return true, x.remove(ctx, r, out)
		}
	}
	if r.create != nil && x.resources[r.name] == nil {
		yes, err := x.evaluateCondition(ctx, r.create)
		if err != nil {
			return false, &StepError{Resources, r.name, "evaluating lifecycle.create.when", err}
		}
		if !yes {
			out.Status, out.Operation, out.Reason = Skip, Skipped, "lifecycle.create.when is false"
			x.skip(r.name + ": " + out.Reason)
			return false, nil
		}
	}
	return false, x.apply(ctx, r, out)
}

// takesPart reports whether the condition of a resource holds.
func (x *execution) takesPart(ctx context.Context, r *resource) (bool, error) {
	if r.when == nil {
		return true, nil
	}
	return x.evaluateCondition(ctx, r.when)
}

func (x *execution) evaluateCondition(ctx context.Context, e *expr) (bool, error) {
	v, err := e.eval(ctx, x.scope)
	return isTrue(v), err
}

func (x *execution) apply(ctx context.Context, r *resource, out *ResourceResult) *StepError {
	object, generation, err := x.renderManifest(ctx, r)
	if err != nil {
		return &StepError{Resources, r.name, "rendering the manifest", err}
	}
	id := identify(object)
	out.Kind, out.Namespace, out.ObjectName = id.Kind, id.Namespace, id.Name
	target, err := r.target.render(x.scope)
	if err != nil {
		return &StepError{Resources, r.name, "rendering target_cluster", err}
	}
	applied, err := x.o.Transport.Apply(ctx, Application{
		Resource: r.name, Object: object, Generation: generation, TargetCluster: work.Consumer(target),
		Recreate: r.recreate, Event: x.event,
		OnlyExisting: x.deleting && r.remove != nil,
	})
	if errors.Is(err, ErrTerminating) {
		// The watch reports the end of the deletion, and the object is applied then.
		out.Status, out.Operation, out.Reason = Skip, Skipped, err.Error()
		x.skip(r.name + ": " + out.Reason)
		x.blocked = true
		return nil
	}
	if err != nil {
		return x.recordResourceFailure(r.name, "applying the object", err)
	}
	out.Operation, out.Reason = applied.Operation, applied.Reason
	found, err := x.discover(ctx, r, object)
	if err != nil {
		return x.recordResourceFailure(r.name, "finding the object", err)
	}
	if found == nil && x.deleting && applied.Object == nil {
		x.unbind(r) // it does not exist, and was not created again
		return nil
	}
	if found == nil { // reads may be behind the write
		if found = applied.Object; found == nil || !x.isFoundByDiscovery(r, found) {
			return x.recordResourceFailure(r.name, "finding the object", errors.New("it is not there after it was applied"))
		}
	}
	x.bind(r, found)
	return nil
}

// remove deletes an object, if it exists, and finds out whether it still exists afterwards.
func (x *execution) remove(ctx context.Context, r *resource, out *ResourceResult) *StepError {
	object, err := x.discover(ctx, r, nil)
	if err != nil {
		return x.recordResourceFailure(r.name, "finding the object to delete", err)
	}
	if object == nil {
		out.Reason = "resource not found, already deleted"
		return x.endDeletion(ctx, r, out)
	}
	id := identify(object)
	out.Kind, out.Namespace, out.ObjectName, out.DiscoveredState = id.Kind, id.Namespace, id.Name, object
	target, err := r.target.render(x.scope)
	if err != nil {
		return &StepError{Resources, r.name, "rendering target_cluster", err}
	}
	began := x.o.Now()
	x.o.Observer.Deleting(id.Kind)
	policy := r.policy
	setDefaultText(&policy, "Background")
	err = x.o.Transport.Delete(ctx, Deletion{Object: object, TargetCluster: work.Consumer(target),
		PropagationPolicy: policy})
	x.o.Observer.Deleted(id.Kind, err, x.o.Now().Sub(began))
	if err != nil {
		return x.recordResourceFailure(r.name, "deleting the object", err)
	}
	out.Reason = "lifecycle.delete.when evaluated to true"
	left, err := x.discover(ctx, r, nil)
	switch {
	case err != nil: // it counts as existing until the next run
		x.o.Log.DebugContext(ctx, "whether a deleted object still exists is unknown", slog.String("id", x.event.ID),
			slog.String("resource", r.name), slog.Any("error", err))
		x.bind(r, object)
	case left == nil: // or Maestro has lost its database in between
		return x.endDeletion(ctx, r, out)
	default:
		x.bind(r, left)
	}
	return nil
}

// endDeletion ends the deletion of an object that is not found, unless its absence is unconfirmed.
func (x *execution) endDeletion(ctx context.Context, r *resource, out *ResourceResult) *StepError {
	x.unbind(r)
	checker, ok := x.o.Transport.(AbsenceChecker)
	if !ok {
		return nil
	}
	s, err := x.renderResourceSearch(r, nil)
	var object Object
	if err == nil {
		object, err = checker.Unconfirmed(ctx, s)
	}
	if err != nil {
		return x.recordResourceFailure(r.name, "finding out whether the object to delete is gone", err)
	}
	if object != nil {
		x.bind(r, object)
		out.Reason = "it is not confirmed that the object does not exist"
	}
	return nil
}

// bind binds an object as resources.<name>, and its nested objects both as resources.<nested> and
// as resources.<name>.<nested>.
func (x *execution) bind(r *resource, object Object) {
	x.unbind(r)
	x.result.Discovered[r.name], x.resources[r.name] = object, object
	if len(r.nested) == 0 {
		return
	}
	with := maps.Clone(object)
	for _, n := range r.nested {
		found := x.findNested(n.discovery, object)
		if found == nil {
			continue
		}
		x.result.Discovered[n.name], x.resources[n.name] = found, found
		if _, own := with[n.name]; !own {
			with[n.name] = found
		}
	}
	x.resources[r.name] = with
}

func (x *execution) unbind(r *resource) {
	for _, m := range []map[string]any{x.resources, x.result.Discovered} {
		delete(m, r.name)
		for _, n := range r.nested {
			delete(m, n.name)
		}
	}
}

// renderSearch renders a discovery into a search.
func (x *execution) renderSearch(d *discovery) (s Search, err error) {
	if s.Namespace, err = d.namespace.render(x.scope); err != nil {
		return s, err
	}
	if d.byName != nil {
		s.Name, err = d.byName.render(x.scope)
		if err == nil && s.Name == "" {
			err = errors.New("by_name is empty")
		}
		return s, err
	}
	setDefaultText(&s.Namespace, "*")
	s.Labels = make(map[string]string, len(d.labels))
	for _, l := range d.labels {
		key, err := l[0].render(x.scope)
		if err != nil {
			return s, err
		}
		if s.Labels[key], err = l[1].render(x.scope); err != nil {
			return s, err
		}
	}
	return s, nil
}

// discover finds a resource's object: of several the one of the latest
// generation. The rendered manifest, when there is one, has the kind.
func (x *execution) discover(ctx context.Context, r *resource, rendered Object) (Object, error) {
	s, err := x.renderResourceSearch(r, rendered)
	if err != nil {
		return nil, err
	}
	found, err := x.o.Transport.Discover(ctx, s)
	if err != nil {
		return nil, err
	}
	return latest(found), nil
}

// renderResourceSearch renders a resource's discovery with all that the transport needs.
func (x *execution) renderResourceSearch(r *resource, rendered Object) (s Search, err error) {
	if s, err = x.renderSearch(&r.discovery); err != nil {
		return s, err
	}
	target, err := r.target.render(x.scope)
	if err != nil {
		return s, err
	}
	s.TargetCluster = work.Consumer(target)
	if rendered != nil {
		id := identify(rendered)
		s.APIVersion, s.Kind = id.APIVersion, id.Kind
		return s, nil
	}
	if s.APIVersion, err = r.version.render(x.scope); err != nil {
		return s, err
	}
	s.Kind, err = r.kind.render(x.scope)
	return s, err
}

// isFoundByDiscovery reports whether the resource's discovery finds an object.
func (x *execution) isFoundByDiscovery(r *resource, object Object) bool {
	s, err := x.renderSearch(&r.discovery)
	return err == nil && matches(s, object)
}

// findNested finds a manifest in a ManifestWork and adds its observed state:
// statusFeedback and conditions.
func (x *execution) findNested(d discovery, work Object) Object {
	s, err := x.renderSearch(&d)
	if err != nil {
		return nil
	}
	var found []Object
	manifests, _ := valueAt(work, "spec.workload.manifests").([]any)
	for _, m := range manifests {
		if object, ok := m.(map[string]any); ok && matches(s, object) {
			found = append(found, object)
		}
	}
	best := latest(found)
	if best == nil {
		return nil
	}
	out := maps.Clone(best) // the work stays as it is
	id := identify(best)
	states, _ := valueAt(work, "status.resourceStatus.manifests").([]any)
	for _, state := range states {
		of, _ := valueAt(state, "resourceMeta").(map[string]any)
		name, _ := of["name"].(string)
		namespace, _ := of["namespace"].(string)
		kind, _ := of["kind"].(string)
		if name != id.Name || namespace != id.Namespace || kind != "" && kind != id.Kind {
			continue
		}
		for _, key := range []string{"statusFeedback", "conditions"} {
			if v, ok := state.(map[string]any)[key]; ok {
				out[key] = v
			}
		}
		break
	}
	return out
}
