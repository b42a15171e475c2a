package arm

import (
	"context"
	"errors"
	"net/http"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// follow follows a collection of the lifecycle manager until ctx ends. It puts a token into begun when the
// lifecycle manager has sent all resources and sends each change from then on.
func (f *front) follow(ctx context.Context, from clmclient.Collection, begun chan<- struct{}) {
	for ctx.Err() == nil {
		hasBegun := false
		err := f.clm.Follow(ctx, from, remote.WatchOptions{Search: remote.Equal("labels."+labelFront, labelFrontValue)},
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
				return f.handle(ctx, from, e)
			})
		if ctx.Err() == nil {
			f.log.Warn("following the lifecycle manager failed; it begins again", "collection", string(from), "error", err)
			pause.For(ctx, time.Second)
		}
	}
}

// handle wakes the operation on the resource of an event. A resource that another API deleted takes its
// document along; a resource whose document was deleted is deleted (decision 105).
func (f *front) handle(ctx context.Context, from clmclient.Collection, e remote.Event) error {
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
	f.engine.Wake(subscription, document)
	f.engine.Wake(subscription, document+authOperand)
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
	} else if r.DeletedTime == nil {
		err = f.deleteOrphan(ctx, kind, document, r)
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
