package backups

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

const (
	expireEvery = time.Hour        // between two calls of removeDeleted
	markRetry   = 15 * time.Second // between two attempts to store that a cluster is deleted
	expireLimit = 10 * time.Minute // of one call of removeDeleted
)

// deletionsName is the directory in the spool with a file for each deletion that is not in the store yet: the name is
// NAMESPACE_NAME, the content the backup.Identity of the data.
const deletionsName = "deleted"

// Deleted records in the store that a cluster is deleted: its backups expire after backup.KeepDeleted, unless another
// management cluster has the plane. It returns at once; this process or the next one retries until the store has the
// deletion. The caller calls it first while the plane's directory of state still has the owner of the data, and again
// after it has removed that directory; it may repeat both calls. A tombstone without an owner never expires the backups
// of a plane that has an owner.
func (b *Backups) Deleted(id controlplane.ID) {
	b.drawing.Lock()
	identity, err := b.readIdentity(id)
	if err != nil {
		b.o.Log.Warn("the owner of a deleted plane's data cannot be read; its backups stay until an operator removes them",
			"plane", id.String(), "error", err)
	}
	b.mu.Lock()
	have, isKnown := b.deleted[id]
	isNew := !isKnown || have.Owner == "" && identity.Owner != ""
	if isNew {
		b.deleted[id] = identity
	}
	b.mu.Unlock()
	b.drawing.Unlock()
	if isNew && identity.Owner != "" {
		if err := b.noteDeletion(id, identity); err != nil {
			b.o.Log.Warn("the deletion of a cluster could not be written to disk; its backups stay if hosting ends now",
				"plane", id.String(), "error", err)
		}
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *Backups) deletionPath(id controlplane.ID) string {
	return filepath.Join(b.o.Spool, deletionsName, id.Namespace+"_"+id.Name) // a namespace has no underscore
}

// noteDeletion writes the identity of the deleted data to disk: hosting is about to remove the plane's directory of
// state, and the store may not answer.
func (b *Backups) noteDeletion(id controlplane.ID, identity backup.Identity) error {
	content, err := json.Marshal(identity)
	if err != nil {
		return err
	}
	path := b.deletionPath(id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600)
}

// readDeletions reads the files that an earlier process has written for its incomplete deletions.
func (b *Backups) readDeletions() error {
	dir := filepath.Join(b.o.Spool, deletionsName)
	notes, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, note := range notes {
		namespace, name, ok := strings.Cut(note.Name(), "_")
		if !ok || atomicfile.IsTemp(note.Name()) {
			continue
		}
		var identity backup.Identity
		path := filepath.Join(dir, note.Name())
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, &identity)
		}
		if err != nil {
			b.o.Log.Warn("the note of a cluster's deletion cannot be read; its backups stay until an operator removes them",
				"note", path, "error", err)
			continue
		}
		b.mu.Lock()
		b.deleted[controlplane.ID{Namespace: namespace, Name: name}] = identity
		b.mu.Unlock()
	}
	return nil
}

// keepExpiring stores the deletions of clusters, and removes the backups of clusters that were deleted longer ago than
// backup.KeepDeleted, until ctx ends.
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
	for id, identity := range list {
		if err := b.records.MarkDeleted(ctx, backup.Plane(id), identity, time.Now()); err != nil {
			b.o.Log.Warn("the deletion of a cluster could not be stored beside its backups; it is tried again",
				"plane", id.String(), "error", err)
			done = false
			continue
		}
		// While the data is on this machine, the entry in b.deleted stays: else isUsed would report that a cluster of
		// the name exists again, and RemoveDeleted would remove the tombstone.
		owner, err := b.readOwner(id)
		if err != nil || owner != "" && owner == identity.Owner {
			continue
		}
		if err := os.Remove(b.deletionPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.o.Log.Warn("the note of a cluster's deletion could not be removed; it is tried again", "plane", id.String(),
				"error", err)
			done = false
			continue
		}
		b.mu.Lock()
		if b.deleted[id].Owner == identity.Owner {
			delete(b.deleted, id)
		}
		b.mu.Unlock()
	}
	return done
}

// removeDeleted removes the backups of clusters that were deleted longer ago than backup.KeepDeleted.
func (b *Backups) removeDeleted(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, expireLimit)
	defer cancel()
	n, err := b.records.RemoveDeleted(ctx, b.isUsed)
	if n > 0 {
		b.o.Log.Info("the backups of deleted clusters were removed", "clusters", n)
	}
	if err != nil && ctx.Err() == nil {
		b.o.Log.Warn("the backups of deleted clusters could not be removed; it is tried again", "error", err)
	}
}

// isUsed reports whether a plane exists on this machine and is not being deleted.
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
