package arm

import (
	"context"
	"errors"
	"net/http"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// orphanCandidate is a resource of the lifecycle manager whose document may have been deleted.
type orphanCandidate struct {
	kind     store.Kind
	document string
	resource clmclient.Resource
}

// orphanQueue has the candidates whose documents must be looked up. One query looks up many, so that the
// events of the lifecycle manager need no query each.
type orphanQueue chan orphanCandidate

const (
	maxWaitingCandidates = 1024
	checkedAtOnce        = 256
)

// enqueue puts a candidate into the queue. It blocks while the queue is full.
func (o orphanQueue) enqueue(ctx context.Context, s orphanCandidate) {
	select {
	case o <- s:
	case <-ctx.Done():
	}
}

// take removes candidates from the queue and returns them: at least one, or none when ctx has ended.
func (o orphanQueue) take(ctx context.Context) (taken []orphanCandidate) {
	select {
	case s := <-o:
		taken = append(taken, s)
	case <-ctx.Done():
		return nil
	}
	for len(taken) < checkedAtOnce {
		select {
		case s := <-o:
			taken = append(taken, s)
		default:
			return taken
		}
	}
	return taken
}

// deleteOrphans checks the candidates in the queue until ctx ends, and deletes those without a document.
func (f *front) deleteOrphans(ctx context.Context) {
	for ctx.Err() == nil {
		taken := f.orphans.take(ctx)
		for _, kind := range []store.Kind{kindCluster, kindPool} {
			if err := f.checkCandidates(ctx, kind, taken); err != nil && ctx.Err() == nil {
				f.log.Warn("comparing with the lifecycle manager failed", "kind", string(kind), "error", err)
			}
		}
	}
}

// checkCandidates deletes the candidates of a kind whose documents were deleted.
func (f *front) checkCandidates(ctx context.Context, kind store.Kind, taken []orphanCandidate) error {
	var ids []string
	for _, s := range taken {
		if s.kind == kind {
			ids = append(ids, s.document)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	exists := map[string]bool{}
	page, err := f.store.List(ctx, store.Query{Kind: kind, Deletion: store.WithDeleting, Limit: checkedAtOnce,
		WithoutSpec: true, Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{ids}}})
	if err != nil {
		return err
	}
	for _, d := range page.Documents {
		exists[d.ID] = true
	}
	var failures []error
	for _, s := range taken {
		if s.kind == kind && !exists[s.document] {
			failures = append(failures, f.deleteOrphan(ctx, s.kind, s.document, s.resource))
		}
	}
	return errors.Join(failures...)
}

// deleteOrphan deletes a resource whose document a customer has deleted: a request to create it arrived
// at the lifecycle manager after the request to delete it. The tombstone proves the deletion; a document
// that is absent without one proves nothing.
func (f *front) deleteOrphan(ctx context.Context, kind store.Kind, id string, r clmclient.Resource) error {
	if _, err := f.store.Get(ctx, kind, id); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if _, err := f.store.Tombstone(ctx, kind, id); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			f.log.Warn("a resource of the lifecycle manager has no document; it stays", "id", r.ID, "document", id)
			return nil
		}
		return err
	}
	ctx = remote.WithActor(clmclient.WithTenant(ctx, cluster.Account(r.Tenancy["account"])), remote.Actor{
		Principal: principalOf(r.Tenancy["account"], ""), Account: r.Tenancy["account"], RequestID: id})
	if _, err := f.clm.Delete(ctx, collectionOf(kind), r.ID, ""); remote.StatusOf(err) != http.StatusNotFound {
		return err
	}
	return nil
}
