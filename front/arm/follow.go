package arm

import (
	"context"
	"errors"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// follow follows a collection of the lifecycle manager until ctx ends. It sends to begun each time that the
// lifecycle manager has sent all resources and will send changes from then on.
func (f *front) follow(ctx context.Context, from clmclient.Collection, begun chan<- struct{}) {
	for ctx.Err() == nil {
		hasBegun := false
		err := f.clm.Follow(ctx, from, remote.WatchOptions{Search: remote.SearchEqual("labels."+labelFront, labelFrontValue)},
			func(e remote.Event) error {
				if e.Type == remote.Relist { // deletions may be missing among the events
					hasBegun = false
				}
				if e.Type == rest.Bookmark && !hasBegun {
					hasBegun = true
					select {
					case begun <- struct{}{}:
					default:
					}
				}
				return f.handleEvent(ctx, from, e)
			})
		if ctx.Err() == nil {
			f.log.Warn("following the lifecycle manager failed; it begins again", "collection", string(from), "error", err)
			pause.For(ctx, time.Second)
		}
	}
}

// handleEvent handles a change of a resource at the lifecycle manager. It wakes the operation on the
// resource. If another API deleted the resource, it removes the document; if the document was deleted, the
// resource is deleted (decision 105).
func (f *front) handleEvent(ctx context.Context, from clmclient.Collection, e remote.Event) error {
	if e.Type != rest.Added && e.Type != rest.Modified && e.Type != rest.Deleted {
		return nil
	}
	r, err := clmclient.ResourceOf(e.Object)
	if err != nil {
		return err
	}
	document, subscription := r.Labels[labelDocument], r.Labels[labelSubscription]
	if document == "" || subscription == "" {
		return nil
	}
	isBusy := f.engine.Wake(subscription, document)
	isBusy = f.engine.Wake(subscription, document+authOperationSuffix) || isBusy
	if from == credentials {
		if e.Type != rest.Deleted && r.DeletedTime == nil {
			err = f.deleteCanceled(ctx, r, document)
		}
		if err != nil {
			f.log.Warn("deleting the Credential of a canceled operation failed", "id", r.ID, "error", err)
		}
		return ctx.Err()
	}
	kind := kindCluster
	if from == nodePools {
		kind = kindPool
	}
	if e.Type == rest.Deleted {
		err = f.dropDocument(ctx, kind, document, r.ID)
	} else if r.DeletedTime == nil && (e.Type == rest.Added || !isBusy) { // a busy document exists
		f.orphans.enqueue(ctx, orphanCandidate{kind: kind, document: document, resource: r})
	}
	if err != nil {
		f.log.Warn("comparing with the lifecycle manager failed", "document", document, "error", err)
	}
	return ctx.Err()
}

// dropDocument removes the document of a resource that was deleted at the lifecycle manager by another
// API. While an operation works on the document, the operation decides.
func (f *front) dropDocument(ctx context.Context, kind store.Kind, id, resource string) error {
	err := f.store.Tx(ctx, func(tx *store.Tx) error {
		d, err := tx.GetForUpdate(ctx, kind, id)
		if err != nil {
			return err
		}
		now, err := toResource(d)
		if err != nil {
			return err
		}
		_, err = f.engine.Active(ctx, tx, now.scope, now.id)
		if err == nil || !errors.Is(err, store.ErrNotFound) || now.status.Resource != resource {
			return err
		}
		if kind == kindCluster {
			if err := f.dropExternalAuth(ctx, tx, now); err != nil {
				return err
			}
		}
		return tx.Remove(ctx, kind, id, 0)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
