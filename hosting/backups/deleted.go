package backups

import (
	"context"
	"maps"
	"os"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

const (
	expireEvery = time.Hour        // the backups of deleted clusters are looked through
	markRetry   = 15 * time.Second // after a failure to store that a cluster is deleted
	expireLimit = 10 * time.Minute // of one look
)

// Deleted records in the store that a cluster is deleted: its backups expire after backup.KeepDeleted, unless another
// management cluster has the plane. It returns at once, and what fails is tried again until the process ends. A caller
// may repeat it, and calls it once while the plane's state still names the owner of its data: the tombstone of a
// cluster without an owner ends no backups of one that has an owner.
func (b *Backups) Deleted(id controlplane.ID) {
	owner, err := b.readOwner(id)
	if err != nil {
		b.o.Log.Warn("the owner of a deleted plane's data cannot be read; its backups stay until an operator removes them",
			"plane", id.String(), "error", err)
	}
	b.mu.Lock()
	if have := b.deleted[id]; have == "" {
		b.deleted[id] = owner
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// keepExpiring stores which clusters are deleted and removes the backups of those that were deleted long ago.
func (b *Backups) keepExpiring(ctx context.Context) {
	var expired time.Time
	for {
		wait := expireEvery
		if !b.markDeleted(ctx) {
			wait = markRetry
		}
		if time.Since(expired) >= expireEvery {
			b.removeDeleted(ctx)
			expired = time.Now()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-b.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// markDeleted stores the deletions that are not in the store yet. It returns false when one could not be stored.
func (b *Backups) markDeleted(ctx context.Context) bool {
	b.mu.Lock()
	list := maps.Clone(b.deleted)
	b.mu.Unlock()
	done := true
	for id, owner := range list {
		if err := backup.MarkDeleted(ctx, b.o.Store, backup.Plane(id), owner, time.Now()); err != nil {
			b.o.Log.Warn("the deletion of a cluster could not be stored beside its backups; it is tried again",
				"plane", id.String(), "error", err)
			done = false
			continue
		}
		b.mu.Lock()
		if b.deleted[id] == owner {
			delete(b.deleted, id)
		}
		b.mu.Unlock()
	}
	return done
}

// removeDeleted removes the backups of clusters that were deleted long ago.
func (b *Backups) removeDeleted(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, expireLimit)
	defer cancel()
	n, err := backup.RemoveDeleted(ctx, b.o.Store, b.isUsed, time.Now())
	if n > 0 {
		b.o.Log.Info("the backups of deleted clusters were removed", "clusters", n)
	}
	if err != nil && ctx.Err() == nil {
		b.o.Log.Warn("the backups of deleted clusters could not be removed; it is tried again", "error", err)
	}
}

// isUsed reports whether a plane exists on this machine.
func (b *Backups) isUsed(p backup.Plane) bool {
	id := controlplane.ID(p)
	b.mu.Lock()
	_, isFollowed := b.followers[id]
	_, isDeleted := b.deleted[id]
	b.mu.Unlock()
	if isFollowed || isDeleted || b.o.Dir == nil {
		return isFollowed
	}
	_, err := os.Stat(b.o.Dir(id))
	return err == nil
}
