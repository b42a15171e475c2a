package arm

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// ensureAtCLM creates or replaces the Cluster or NodePool of a document so that it has the requested spec,
// and waits until it is reconciled. It reads the lifecycle manager first and the document afterwards: a
// write with the entity tag of that read cannot overwrite the spec of a newer document.
func (f *front) ensureAtCLM(ctx context.Context, s ops.State, p parameters) ops.Outcome {
	var have clmclient.Resource
	var found bool
	if !isFirstCreation(s) {
		id, err := f.resourceID(ctx, s, p)
		if err == nil {
			have, found, err = f.readAtCLM(ctx, p.Kind, p.Document, id)
		}
		if err != nil {
			return failureOutcome(err)
		}
	}
	want, err := f.loadDocument(ctx, p.Kind, p.Document)
	if err != nil {
		return failureOutcome(err)
	}
	if want.status.State == stateDeleting {
		return progressOutcome("Superseded", 0) // the cancel of this operation is on its way
	}
	spec, parent, err := f.specOf(ctx, want)
	if err != nil {
		return failureOutcome(err)
	}
	if !found {
		if have, err = f.createAtCLM(ctx, want, parent, spec); err != nil {
			return failureOutcome(err)
		}
	} else {
		after, err := updateOwnedMembers(have.Spec, spec)
		if err != nil {
			return failureOutcome(err)
		}
		same, err := store.SameJSON(have.Spec, after)
		if err == nil && !same {
			var body []byte
			if body, err = json.Marshal(map[string]json.RawMessage{"spec": after}); err == nil {
				have, err = f.clm.Replace(ctx, collectionOf(p.Kind), have.ID, body, have.ETag)
			}
		}
		if err != nil {
			return failureOutcome(err)
		}
	}
	outcome := outcomeOf(have, want)
	if want.status.Resource != have.ID {
		outcome.Change = func(ctx context.Context, tx *store.Tx) error {
			_, _, err := tx.Update(ctx, p.Kind, p.Document, 0, resourceIDChange(have.ID))
			return err
		}
	}
	if _, isStored := s.StepDone(stepCreated); !isStored && outcome.Event.Kind == ops.Progress {
		id, err := json.Marshal(have.ID)
		if err != nil {
			return failureOutcome(err)
		}
		outcome.Event.Step = &ops.Step{Name: stepCreated, Result: id}
	}
	return outcome
}

// stepCreated is the step that records that the resource exists at the lifecycle manager. Its result is the
// id there.
const stepCreated = "created"

// isFirstCreation reports whether the resource of an operation cannot exist yet: the operation creates it,
// has its first lease, and has made no progress. Then the creation needs no search for an existing
// resource.
func isFirstCreation(s ops.State) bool {
	return s.Request == requestCreate && s.Fence == 1 && s.Phase == "" && s.Percent == 0
}

// resourceID returns the id that the lifecycle manager has given to the resource of an operation; "" when the front
// does not know it.
func (f *front) resourceID(ctx context.Context, s ops.State, p parameters) (id string, err error) {
	if step, done := s.StepDone(stepCreated); done {
		return id, json.Unmarshal(step.Result, &id)
	}
	known, err := f.loadDocument(ctx, p.Kind, p.Document)
	return known.status.Resource, err
}

// outcomeOf returns the outcome of an attempt from the status of the resource at the lifecycle manager.
func outcomeOf(have clmclient.Resource, want resource) ops.Outcome {
	if len(have.Statuses) == 0 {
		return progressOutcome("Ordered", 5)
	}
	now := readStatus(have, want)
	switch {
	case have.DeletedTime != nil:
		return failureOutcome(&remote.Error{Status: http.StatusConflict,
			Reason: "the resource is being deleted by another API"})
	case now.isDone:
		seen, err := json.Marshal(now.seen)
		if err != nil {
			return failureOutcome(err)
		}
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed, Result: seen}}
	case now.isFailed:
		return ops.Outcome{Event: ops.Event{Kind: ops.Fail, Error: &ops.Error{Code: now.reason, Message: now.message,
			Target: want.spec.Path}}}
	}
	return progressOutcome(now.reason, percentOf(now.phase))
}

// specOf returns the completed spec of a resource, and the id of the Cluster of a node pool.
func (f *front) specOf(ctx context.Context, r resource) (spec map[string]any, parent string, err error) {
	releases, err := f.releases.Releases(ctx)
	if err != nil {
		return nil, "", err
	}
	var owner *resource
	if r.kind == kindPool {
		of, err := f.loadDocument(ctx, kindCluster, r.spec.Parent)
		if err != nil {
			return nil, "", err
		}
		owner, parent = &of, of.status.Resource
	}
	var p problems
	return checkSpec(&p, releases, owner, nil, r), parent, nil // the request was checked; CLM checks again
}

// createAtCLM creates a Cluster or NodePool. It may be called again with the same document.
func (f *front) createAtCLM(ctx context.Context, r resource, parent string, spec map[string]any) (clmclient.Resource,
	error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return clmclient.Resource{}, err
	}
	in, body := clusters, clm.ResourceCreate{Kind: "Cluster", Name: clusterNameOf(r), Labels: labelsOf(r), Spec: data}
	if r.kind == kindPool {
		if parent == "" {
			return clmclient.Resource{}, &remote.Error{Status: http.StatusConflict, Reason: "the cluster is not created yet"}
		}
		in, body.Kind, body.Name = clusters.Below(parent, nodePools), "NodePool", strings.ToLower(r.spec.Name)
	}
	made, err := f.clm.Create(ctx, in, body, r.id)
	if remote.StatusOf(err) == http.StatusConflict {
		if before, found, readErr := f.readAtCLM(ctx, r.kind, r.id, ""); readErr == nil && found {
			return before, nil // an earlier attempt has created it
		}
	}
	return made, err
}

// storeResourceID stores the id at the lifecycle manager in the document of a resource, unless it is there
// already.
func (f *front) storeResourceID(ctx context.Context, r resource, id string) error {
	if r.status.Resource == id {
		return nil
	}
	_, _, err := f.store.Update(ctx, r.kind, r.id, 0, resourceIDChange(id))
	return err
}

// resourceIDChange returns a change of a document: it stores the id at the lifecycle manager, and makes
// Accepted Provisioning.
func resourceIDChange(id string) func(*store.Document) error {
	return func(d *store.Document) error {
		return editDocument(d, func(now *resource) {
			now.status.Resource = id
			if now.status.State == stateAccepted {
				now.status.State = stateProvisioning
			}
		})
	}
}
