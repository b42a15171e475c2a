package arm

import (
	"context"
	"net/http"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/store"
)

const (
	// documentsPause is the time between two comparisons of the documents with the lifecycle manager, while the
	// front follows it.
	documentsPause = time.Hour
	// documentsRetry is the pause after a comparison that failed.
	documentsRetry = 10 * time.Second
)

// compareDocuments removes the documents of resources that another API deleted while no front followed the
// lifecycle manager: each time that a follower has begun, and once an hour.
func (f *front) compareDocuments(ctx context.Context, kind store.Kind, begun <-chan struct{}) {
	timer := time.NewTimer(documentsPause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-begun:
		case <-timer.C:
		}
		timer.Reset(documentsPause)
		if err := f.dropDeleted(ctx, kind); err != nil && ctx.Err() == nil {
			f.log.Warn("comparing documents with the lifecycle manager failed", "kind", string(kind), "error", err)
			timer.Reset(documentsRetry)
		}
	}
}

// dropDeleted removes the documents whose resource the lifecycle manager has reported as removed.
func (f *front) dropDeleted(ctx context.Context, kind store.Kind) error {
	exists := map[string]bool{}
	for r, err := range f.clm.All(ctx, collectionOf(kind), clmclient.ResourceQuery{Fields: "id",
		Search: remote.SearchEqual("labels."+labelFront, labelFrontValue), Order: "created_time asc"}) {
		if err != nil {
			return err
		}
		exists[r.ID] = true
	}
	return f.eachDocument(ctx, store.Query{Kind: kind}, func(r resource) error {
		if r.status.Resource == "" || !isTerminal(r.status.State) || exists[r.status.Resource] {
			return nil
		}
		removed, err := f.isRemoved(ctx, kind, r.status.Resource)
		switch {
		case err != nil:
			return err
		case !removed:
			f.log.Warn("the lifecycle manager lacks a resource and has no record of its removal; the document stays",
				"document", r.id, "id", r.status.Resource)
			return nil
		}
		return f.dropDocument(ctx, kind, r.id, r.status.Resource)
	})
}

// isRemoved reports whether the lifecycle manager has removed a resource: the history of the resource ends
// with its removal. A resource without history proves nothing, because the database of the lifecycle manager
// may have been restored from a backup.
func (f *front) isRemoved(ctx context.Context, kind store.Kind, id string) (bool, error) {
	records, err := f.clm.History(ctx, collectionOf(kind), id, 0, 3)
	if remote.StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, record := range records {
		switch record.Action {
		case "remove":
			return true, nil
		case "force-delete": // a note about the removal beside it
		default:
			return false, nil
		}
	}
	return false, nil
}
