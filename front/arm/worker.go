package arm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// Collections of the lifecycle manager.
const (
	clusters    clmclient.Collection = "clusters"
	nodePools   clmclient.Collection = "nodepools"
	credentials clmclient.Collection = "credentials"
)

// budgets are how long operations may take.
var budgets = map[ops.Request]time.Duration{
	requestCreate: time.Hour, requestUpdate: time.Hour, requestDelete: 12 * time.Hour,
	requestCredential: 5 * time.Minute, requestRevoke: time.Hour,
}

// Work implements ops.Worker. It compares the requested spec in the documents with the resources at the
// lifecycle manager, and changes the difference; decision 105 says why it may run at any time, any number
// of times.
func (f *front) Work(ctx context.Context, s ops.State) ops.Outcome {
	p, err := parametersOf(s)
	if err != nil {
		return failureOutcome(err)
	}
	ctx = remote.WithActor(clmclient.WithTenant(ctx, p.Account), remote.Actor{
		Principal: string(principalOf(p.Account, p.Client)), Account: string(p.Account), RequestID: s.ID})
	switch {
	case s.Request == requestDelete && p.Kind == kindAuth:
		return f.removeIssuerAtCLM(ctx, p)
	case s.Request == requestDelete:
		return f.deleteAtCLM(ctx, p)
	case s.Request == requestCredential:
		return f.createCredential(ctx, s, p)
	case s.Request == requestRevoke:
		return f.revoke(ctx, p)
	case p.Kind == kindAuth:
		return f.addIssuerAtCLM(ctx, p)
	}
	return f.ensureAtCLM(ctx, s, p)
}

// quotaAtCLM is the lifecycle manager's code for a creation that exceeds a quota of the account.
const quotaAtCLM = "HYPERFLEET-LMT-002"

// failureOutcome returns the outcome of an attempt that ended with an error. The operation fails if the
// error is an answer that refuses the request; after all other errors it is tried again.
func failureOutcome(err error) ops.Outcome {
	kind, e := ops.Retry, &ops.Error{Code: codeInternal, Message: "the service failed; it tries again"}
	if answer, isAnswer := errors.AsType[*remote.Error](err); isAnswer {
		e.Message = answer.Reason
		switch answer.Status {
		case http.StatusConflict, http.StatusPreconditionFailed:
			e.Code = codeConflict
		case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests,
			http.StatusRequestTimeout:
			e.Code = codeUnavailable
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			kind, e.Code = ops.Fail, codeInvalidContent
		case http.StatusForbidden:
			if kind, e.Code = ops.Fail, codeForbidden; answer.Code == quotaAtCLM {
				e.Code = codeQuotaExceeded
			}
		default:
			if answer.Status >= 400 && answer.Status < 500 {
				kind, e.Code = ops.Fail, codesByStatus[answer.Status]
				if e.Code == "" {
					e.Code = codeInvalidContent
				}
			}
		}
	}
	return ops.Outcome{Event: ops.Event{Kind: kind, Error: e}}
}

// progressOutcome returns the outcome of an attempt that has to wait in a phase.
func progressOutcome(phase string, percent int) ops.Outcome {
	return ops.Outcome{Event: ops.Event{Kind: ops.Progress, Phase: phase, Percent: percent}}
}

func collectionOf(kind store.Kind) clmclient.Collection {
	if kind == kindPool {
		return nodePools
	}
	return clusters
}

// readAtCLM reads the resource of a document at the lifecycle manager, by its id there, or by its label
// when id is "". found is false when there is none.
func (f *front) readAtCLM(ctx context.Context, kind store.Kind, document, id string) (r clmclient.Resource, found bool,
	err error) {
	if id == "" {
		page, err := f.clm.List(ctx, collectionOf(kind), clmclient.ResourceQuery{Size: 1,
			Search: remote.SearchEqual("labels."+labelDocument, document)})
		if err != nil || len(page.Items) == 0 {
			return r, false, err
		}
		id = page.Items[0].ID
	}
	r, err = f.clm.GetWithStatuses(ctx, collectionOf(kind), id)
	if remote.StatusOf(err) == http.StatusNotFound {
		return r, false, nil
	}
	return r, err == nil, err
}

// loadDocument reads and decodes a document of this front.
func (f *front) loadDocument(ctx context.Context, kind store.Kind, id string) (resource, error) {
	d, err := f.store.Get(ctx, kind, id)
	if err != nil {
		return resource{}, err
	}
	return toResource(d)
}

// editDocument decodes a document, changes it, and encodes it again.
func editDocument(d *store.Document, change func(*resource)) error {
	now, err := toResource(*d)
	if err != nil {
		return err
	}
	change(&now)
	return now.store(d)
}

// deleteAtCLM deletes the resource of a document at the lifecycle manager, and waits until it is removed.
// The node pools of a cluster and its external authentication are deleted with it.
func (f *front) deleteAtCLM(ctx context.Context, p parameters) ops.Outcome {
	if p.Kind == kindCluster {
		if err := f.eachChild(ctx, p.Document, func(child resource) error {
			return f.cancelChildOperation(ctx, child)
		}); err != nil {
			return failureOutcome(err)
		}
	}
	r, err := f.loadDocument(ctx, p.Kind, p.Document)
	if err != nil {
		return failureOutcome(err)
	}
	have, found, err := f.readAtCLM(ctx, p.Kind, p.Document, r.status.Resource)
	if err != nil {
		return failureOutcome(err)
	}
	if !found {
		if p.Kind == kindCluster {
			if err := f.eachChild(ctx, p.Document, func(child resource) error {
				return f.store.Remove(ctx, child.kind, child.id, 0)
			}); err != nil {
				return failureOutcome(err)
			}
		}
		return ops.Outcome{Event: ops.Event{Kind: ops.Succeed}}
	}
	if have.DeletedTime == nil {
		if _, err := f.clm.Delete(ctx, collectionOf(p.Kind), have.ID, ""); err != nil &&
			remote.StatusOf(err) != http.StatusNotFound {
			return failureOutcome(err)
		}
		return ops.Outcome{Event: ops.Event{Kind: ops.Progress, Phase: stateDeleting, Percent: 20}, Again: time.Second}
	}
	return progressOutcome(stateDeleting, 50)
}

// eachChild calls do with each node pool and external authentication of a cluster.
func (f *front) eachChild(ctx context.Context, cluster string, do func(resource) error) error {
	for _, kind := range []store.Kind{kindPool, kindAuth} {
		if err := f.eachDocument(ctx, store.Query{Kind: kind,
			Where: store.Fragment{SQL: childrenSQL, Args: []any{cluster}}}, do); err != nil {
			return err
		}
	}
	return nil
}

// eachDocument calls do with each resource of a query. It goes on after a resource that was removed.
func (f *front) eachDocument(ctx context.Context, q store.Query, do func(resource) error) error {
	for {
		page, err := f.store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			r, err := toResource(d)
			if err == nil {
				err = do(r)
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// cancelChildOperation marks a node pool or external authentication as deleting, and cancels its operation,
// because its cluster is being deleted.
func (f *front) cancelChildOperation(ctx context.Context, child resource) error {
	if child.status.State == stateDeleting && child.status.Operation == "" {
		return nil
	}
	return f.store.Tx(ctx, func(tx *store.Tx) error {
		if _, _, err := tx.Update(ctx, child.kind, child.id, 0, func(d *store.Document) error {
			return editDocument(d, func(now *resource) { now.status.State, now.status.Operation = stateDeleting, "" })
		}); err != nil {
			return err
		}
		return f.cancelActiveOperation(ctx, tx, child, "")
	})
}

// cancelActiveOperation cancels the active operation of a resource, if there is one. by is the id of the
// operation that takes its place, or "".
func (f *front) cancelActiveOperation(ctx context.Context, tx *store.Tx, r resource, by string) error {
	why := &ops.Error{Code: codeCanceled, Message: "The operation was superseded by the deletion of the resource."}
	if by != "" {
		why.Message = fmt.Sprintf("The operation was superseded by the operation %s.", by)
	}
	_, err := f.engine.Supersede(ctx, tx, r.scope, r.operationKey(), why)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// recordEnd implements ops.RecordEnd: it stores the end of an operation in the document of its resource, or
// removes the document after a deletion.
func (f *front) recordEnd(ctx context.Context, tx *store.Tx, s ops.State) error {
	p, err := parametersOf(s)
	if err != nil || s.Request == requestCredential || s.Request == requestRevoke {
		return err
	}
	if s.Request == requestDelete && s.Status == ops.Succeeded {
		err := tx.Remove(ctx, p.Kind, p.Document, 0)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	}
	_, _, err = tx.Update(ctx, p.Kind, p.Document, 0, func(d *store.Document) error {
		return editDocument(d, func(now *resource) {
			now.status.State, now.status.Error = string(s.Status), s.Error
			var seen observation
			if len(s.Result) > 0 && json.Unmarshal(s.Result, &seen) == nil {
				now.status.Observed = &seen
			}
		})
	})
	if p.Kind == kindAuth && errors.Is(err, store.ErrNotFound) {
		return nil // its cluster was deleted by another API
	}
	return err
}
