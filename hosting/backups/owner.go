package backups

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// Files in the directory that hosting keeps about a plane. All are deleted with the plane.
const (
	// ownerName is the file with the backup.Owner of the plane's data on this machine.
	ownerName = "backup-owner"
	// identityName is the file with the whole backup.Identity; a version before kept the owner alone.
	identityName = "backup-identity"
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

// errEnded is the error of a follower that would draw an owner for a plane that has ended.
var errEnded = errors.New("the plane has ended, and nothing of it is on this machine")

// keeper keeps the backup.Identity of a plane in the plane's state.
type keeper struct {
	b        *Backups
	id       controlplane.ID
	follower *follower // which claims; nil: an order claims
}

// Load returns the identity of a plane's data on this machine, and draws the owner at the first call. A follower draws
// none after End: the plane's data and state may be deleted since, and what is drawn would stay.
func (k keeper) Load() (backup.Identity, error) {
	k.b.drawing.Lock()
	defer k.b.drawing.Unlock()
	have, err := k.b.readIdentity(k.id)
	if err != nil || have.Owner != "" {
		return have, err
	}
	if k.follower != nil && !k.b.isRunning(k.id, k.follower) {
		return backup.Identity{}, errEnded
	}
	drawn := backup.Owner(rand.Text())
	dir := k.b.o.State(k.id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return backup.Identity{}, err
	}
	return backup.Identity{Owner: drawn}, atomicfile.Write(filepath.Join(dir, ownerName), []byte(drawn+"\n"), 0o600)
}

// Update changes the identity. It refuses to when the plane's cluster is deleted: the note of the deletion has the
// draws of before, and would take a later one for that of another machine.
func (k keeper) Update(of backup.Owner, change func(backup.Identity) backup.Identity) error {
	k.b.drawing.Lock()
	defer k.b.drawing.Unlock()
	identity, err := k.b.readIdentity(k.id)
	if err != nil {
		return err
	}
	k.b.mu.Lock()
	isDeleted := k.b.deleted[k.id].Owner == of
	k.b.mu.Unlock()
	if identity.Owner != of || isDeleted {
		return fmt.Errorf("plane %s: its cluster was deleted", k.id)
	}
	content, err := json.Marshal(change(identity))
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(k.b.o.State(k.id), identityName), content, 0o600)
}

// readIdentity returns the identity of a plane's data on this machine; one without an owner when none was drawn.
func (b *Backups) readIdentity(id controlplane.ID) (identity backup.Identity, err error) {
	owner, err := b.readOwner(id)
	if err != nil || owner == "" {
		return backup.Identity{}, err
	}
	path := filepath.Join(b.o.State(id), identityName)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return backup.Identity{Owner: owner}, nil
	}
	if err != nil {
		return backup.Identity{}, err
	}
	if err := json.Unmarshal(content, &identity); err != nil || identity.Owner != owner {
		return backup.Identity{}, fmt.Errorf("%s is not the identity of owner %s: restore it, or delete the plane's data: "+
			"hosting then recovers the plane from its backup", path, owner)
	}
	return identity, nil
}

// claimant returns the Claimant for the data of a plane on this machine.
func (b *Backups) claimant(id controlplane.ID) *backup.Claimant {
	return b.records.Claimant(backup.Plane(id), keeper{b: b, id: id})
}

// take takes the backups of a plane for its data on this machine, before that data is made from them. No data of the
// plane elsewhere has them from now on.
func (b *Backups) take(ctx context.Context, id controlplane.ID) error {
	if b.o.State == nil {
		return nil
	}
	return b.claimant(id).Take(ctx)
}

// takeNew takes the backups of a plane that is new here, and of which the store has no data. A plane of this name that
// was deleted, or lost before its first backup, may have left an owner.
func (b *Backups) takeNew(ctx context.Context, id controlplane.ID) error {
	if b.o.State == nil {
		return nil
	}
	if isOwned, err := b.records.IsOwned(ctx, backup.Plane(id)); err != nil || !isOwned {
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
