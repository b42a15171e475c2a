package arm

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

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
	failures int // of its check
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

// take removes up to limit candidates from the queue and returns them. It waits for the first one until ctx or wait
// ends.
func (o orphanQueue) take(ctx context.Context, wait time.Duration, limit int) (taken []orphanCandidate) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case s := <-o:
		taken = append(taken, s)
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return nil
	}
	for len(taken) < limit {
		select {
		case s := <-o:
			taken = append(taken, s)
		default:
			return taken
		}
	}
	return taken
}

// deleteOrphans checks the candidates in the queue until ctx ends, and deletes those without a document. It checks a
// candidate again whose check failed.
func (f *front) deleteOrphans(ctx context.Context) {
	retries := orphanRetries{}
	for ctx.Err() == nil {
		// Half of the places of a check are for new candidates, so that failing ones do not hold these up.
		taken := retries.takeDue(time.Now(), checkedAtOnce/2)
		wait := retries.untilNext(time.Now())
		if len(taken) > 0 {
			wait = 0
		}
		taken = append(taken, f.orphans.take(ctx, wait, checkedAtOnce-len(taken))...)
		for _, kind := range []store.Kind{kindCluster, kindPool} {
			failed, err := f.checkCandidates(ctx, kind, taken)
			if err == nil || ctx.Err() != nil {
				continue
			}
			dropped := retries.add(failed, time.Now())
			f.log.Warn("comparing with the lifecycle manager failed; it is tried again", "kind", string(kind),
				"candidates", len(failed), "dropped", dropped, "error", err)
		}
	}
}

// checkCandidates deletes the candidates of a kind whose documents were deleted. It returns the candidates whose check
// failed, and why.
func (f *front) checkCandidates(ctx context.Context, kind store.Kind, taken []orphanCandidate) (
	failed []orphanCandidate, err error) {
	var ids []string
	var checked []orphanCandidate
	for _, s := range taken {
		if s.kind == kind {
			ids, checked = append(ids, s.document), append(checked, s)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	exists := map[string]bool{}
	page, err := f.store.List(ctx, store.Query{Kind: kind, Deletion: store.WithDeleting, Limit: checkedAtOnce,
		WithoutSpec: true, Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{ids}}})
	if err != nil {
		return checked, err
	}
	for _, d := range page.Documents {
		exists[d.ID] = true
	}
	for _, s := range checked {
		if exists[s.document] {
			continue
		}
		if deleteErr := f.deleteOrphan(ctx, s.kind, s.document, s.resource); deleteErr != nil {
			failed, err = append(failed, s), cmp.Or(err, deleteErr) // one failure is logged for all
		}
	}
	return failed, err
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
	account := cluster.Account(r.Tenancy["account"])
	ctx = remote.WithActor(clmclient.WithTenant(ctx, account), remote.Actor{
		Principal: string(principalOf(account, "")), Account: string(account), RequestID: id})
	if _, err := f.clm.Delete(ctx, collectionOf(kind), r.ID, ""); remote.StatusOf(err) != http.StatusNotFound {
		return err
	}
	return nil
}
