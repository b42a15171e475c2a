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

// Files in a plane's directory of state (Options.State). All are deleted with the plane.
const (
	// ownerName is the file with the backup.Owner of the plane's data on this machine.
	ownerName = "backup-owner"
	// identityName is the file with the whole backup.Identity; an earlier version wrote only the owner.
	identityName = "backup-identity"
	// supersededName is the file that shows that another management cluster has the plane.
	supersededName = "superseded"
)

// readOwner returns the owner of a plane's data on this machine; "" when none was generated yet.
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

// errEnded is the error of a follower that would generate an owner for a plane that has ended.
var errEnded = errors.New("the plane has ended, and nothing of it is on this machine")

// keeper keeps the backup.Identity of a plane in the plane's state.
type keeper struct {
	b        *Backups
	id       controlplane.ID
	follower *follower // that claims the plane; nil: the claim is part of an order
}

// Load returns the identity of a plane's data on this machine, and generates the owner at the first call. For a
// follower it generates none after End: the plane's data and state may have been deleted since, and the new file would
// stay.
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

// Update changes the identity. It returns an error when the plane's cluster is deleted: the record of the deletion has
// the draws up to then, and a later draw in the store would count as that of another machine.
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

// readIdentity returns the identity of a plane's data on this machine; without an owner when none was generated yet.
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

// take makes this machine the owner of a plane's backups, before hosting makes the plane's data from them. From then on
// the data of the plane on every other machine is superseded.
func (b *Backups) take(ctx context.Context, id controlplane.ID) error {
	if b.o.State == nil {
		return nil
	}
	return b.claimant(id).Take(ctx)
}

// takeNew makes this machine the owner of a plane that is new here and has no backup in the store, when the store has
// an owner of that name: an earlier plane of the name was deleted, or lost before its first backup.
func (b *Backups) takeNew(ctx context.Context, id controlplane.ID) error {
	if b.o.State == nil {
		return nil
	}
	if isOwned, err := b.records.IsOwned(ctx, backup.Plane(id)); err != nil || !isOwned {
		return err
	}
	return b.take(ctx, id)
}

// IsSuperseded reports whether another management cluster has the plane: then it must not run on this one. The disk
// keeps the answer over restarts of this process, also while the store does not answer.
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
		// After another error the file may exist.
		if _, err := os.Lstat(filepath.Join(b.o.State(id), name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// followerChanged writes to disk that a plane is superseded, when it is, and notifies hosting.
func (b *Backups) followerChanged(id controlplane.ID, f *backup.Follower) {
	if f.State().Superseded && b.o.State != nil {
		path := filepath.Join(b.o.State(id), supersededName)
		if err := atomicfile.Write(path, []byte("another management cluster has the plane\n"), 0o600); err != nil {
			b.o.Log.Warn("that another management cluster has a plane could not be written to disk; hosting reads the store "+
				"again after a restart", "plane", id.String(), "error", err)
		}
	}
	b.changed(id)
}
