package backups

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// Files in the directory that hosting keeps about a plane. Both are deleted with the plane.
const (
	// ownerName is the file with the backup.Owner of the plane's data on this machine.
	ownerName = "backup-owner"
	// supersededName is the file that shows that another management cluster has the plane.
	supersededName = "superseded"
)

// readOwner returns the owner of a plane's data on this machine; "" when none was drawn.
func (b *Backups) readOwner(id controlplane.ID) (backup.Owner, error) {
	if b.o.State == nil {
		return "", nil
	}
	content, err := os.ReadFile(filepath.Join(b.o.State(id), ownerName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return backup.Owner(strings.TrimSpace(string(content))), err
}

// owner returns the owner of a plane's data on this machine, and draws it at the first call.
func (b *Backups) owner(id controlplane.ID) (backup.Owner, error) {
	b.drawing.Lock()
	defer b.drawing.Unlock()
	have, err := b.readOwner(id)
	if err != nil || have != "" {
		return have, err
	}
	drawn := backup.Owner(rand.Text())
	if err := os.MkdirAll(b.o.State(id), 0o700); err != nil {
		return "", err
	}
	return drawn, atomicfile.Write(filepath.Join(b.o.State(id), ownerName), []byte(drawn+"\n"), 0o600)
}

// take takes the backups of a plane for its data on this machine, before that data is made from them. No data of the
// plane elsewhere has them from now on.
func (b *Backups) take(ctx context.Context, id controlplane.ID) error {
	if b.o.State == nil {
		return nil
	}
	owner, err := b.owner(id)
	if err != nil {
		return err
	}
	return backup.Take(ctx, b.o.Store, backup.Plane(id), owner)
}

// takeNew takes the backups of a plane that is new here, and of which the store has no data. A plane of this name that
// was deleted, or lost before its first backup, may have left an owner.
func (b *Backups) takeNew(ctx context.Context, id controlplane.ID) error {
	if b.o.State == nil {
		return nil
	}
	if isOwned, err := backup.IsOwned(ctx, b.o.Store, backup.Plane(id)); err != nil || !isOwned {
		return err
	}
	return b.take(ctx, id)
}

// IsSuperseded reports whether another management cluster has the plane: it never runs on this one again. It stays so
// over restarts of this process, also while the store does not answer.
func (b *Backups) IsSuperseded(id controlplane.ID) bool {
	b.mu.Lock()
	f := b.followers[id]
	b.mu.Unlock()
	if f != nil && f.State().Superseded {
		return true
	}
	if b.o.State == nil {
		return false
	}
	for _, name := range []string{supersededName, leftName} {
		// A disk that does not answer may have the note.
		if _, err := os.Lstat(filepath.Join(b.o.State(id), name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// followerChanged keeps on the disk that a plane is superseded, and notifies hosting.
func (b *Backups) followerChanged(id controlplane.ID, f *backup.Follower) {
	if f.State().Superseded && b.o.State != nil {
		path := filepath.Join(b.o.State(id), supersededName)
		if err := atomicfile.Write(path, []byte("another management cluster has the plane\n"), 0o600); err != nil {
			b.o.Log.Warn("hosting could not note that another management cluster has a plane; the store is asked again "+
				"after a restart", "plane", id.String(), "error", err)
		}
	}
	b.changed(id)
}
