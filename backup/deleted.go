package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// KeepDeleted is how long the backups of a deleted cluster stay, by the clock of the store; longer when the store locks
// them for longer.
const KeepDeleted = 7 * 24 * time.Hour

// deletedPrefix is the prefix of the tombstones of deleted clusters. No namespace begins with a dot.
const deletedPrefix = ".deleted/"

// tombstone records that a cluster was deleted. The object's content is the time of the deletion and, after a space,
// the owner of the deleted data.
type tombstone struct {
	At    time.Time // by the clock of the machine that has stored it, for people; RemoveDeleted reads Store.Age
	Owner Owner     // "": unknown, or an earlier version wrote the tombstone
}

func parseTombstone(content []byte) (t tombstone, err error) {
	at, owner, _ := strings.Cut(string(content), " ")
	t.Owner = Owner(owner)
	if t.At, err = time.Parse(time.RFC3339, at); err != nil {
		return t, fmt.Errorf("%w: the time of its tombstone cannot be read: %w", ErrCorrupt, err)
	}
	return t, nil
}

func (t tombstone) String() string {
	text := t.At.UTC().Format(time.RFC3339)
	if t.Owner != "" {
		text += " " + string(t.Owner)
	}
	return text
}

// isOf reports whether the tombstone records the deletion of the plane that has this last owner. When it names an
// earlier owner, only the data of that owner was deleted, and the plane goes on elsewhere: its management cluster was
// lost and came back, or the plane was moved away from it.
func (t tombstone) isOf(last Owner) bool { return last == "" || t.Owner == last }

// MarkDeleted stores that a plane's cluster is deleted: RemoveDeleted removes its backups after KeepDeleted. Of
// several calls with the same owner the first counts. It stores nothing when another owner has the plane, or when a
// machine with a copy of this machine's disk has claimed it. An Identity without an owner means that the owner of the
// data is unknown.
func (r *Records) MarkDeleted(ctx context.Context, p Plane, id Identity, now time.Time) error {
	have, err := r.owners(ctx, p)
	if err != nil {
		return err
	}
	owner := id.Owner
	mark := tombstone{At: now, Owner: owner}
	if owner != "" {
		if !mark.isOf(have.last()) {
			return nil
		}
		if err := have.check(id, confirms); errors.Is(err, ErrSuperseded) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", ownersPrefix+p.String(), err)
		}
	}
	name := deletedPrefix + p.String()
	content, err := r.store.Get(ctx, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if err == nil {
		if before, err := parseTombstone(content); err == nil && (owner == "" || before.Owner == owner) {
			return nil
		}
	}
	return r.store.Put(ctx, name, []byte(mark.String()))
}

// Exists reports whether the store has a backup of a plane whose cluster was not deleted. The answer is no when a
// tombstone names the plane's last owner: a cluster that has the name now is another one, and must not get the backup.
// The error is ErrCorrupt when the list that names this owner is not sealed.
func (r *Records) Exists(ctx context.Context, p Plane) (bool, error) {
	content, err := r.store.Get(ctx, deletedPrefix+p.String())
	if err != nil && !errors.Is(err, ErrNotFound) {
		return false, err
	}
	if err == nil {
		have, err := r.owners(ctx, p)
		if err != nil {
			return false, err
		}
		mark, err := parseTombstone(content)
		if err != nil {
			return false, err
		}
		if mark.isOf(have.last()) {
			if have.last() != "" && !have.isSealed {
				return false, fmt.Errorf("%s: %w: the list of owners is not sealed, so it is not known whether the cluster was "+
					"deleted; delete %s if it was not, and the objects below %s if it was", ownersPrefix+p.String(), ErrCorrupt,
					deletedPrefix+p.String(), p.prefix())
			}
			return false, nil
		}
	}
	chains, err := Chains(ctx, r.store, p)
	return len(chains) > 0, err
}

// RemoveDeleted removes the backups of all clusters whose tombstones are older than KeepDeleted. The store's clock
// decides that alone: neither that of this machine nor that of the machine that has deleted the cluster counts. It
// removes only the tombstone when isUsed reports that a cluster of the name exists again, and when another owner than
// the one in the tombstone has the plane. An error of one plane stops no other. It returns how many planes lost their
// backups.
func (r *Records) RemoveDeleted(ctx context.Context, isUsed func(Plane) bool) (n int, err error) {
	tombstones, err := r.store.List(ctx, deletedPrefix)
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, name := range tombstones {
		namespace, plane, ok := strings.Cut(strings.TrimPrefix(name, deletedPrefix), "/")
		p := Plane{Namespace: namespace, Name: plane}
		if !ok || namespace == "" || plane == "" || strings.Contains(plane, "/") {
			continue
		}
		if isUsed(p) {
			failed = append(failed, r.store.Delete(ctx, name))
			continue
		}
		isRemoved, err := r.removeDeleted(ctx, name, p)
		if err != nil {
			failed = append(failed, fmt.Errorf("the backups of the deleted cluster %s: %w", p, err))
		}
		if isRemoved {
			n++
		}
	}
	return n, errors.Join(failed...)
}

// removeDeleted removes the backups of one plane, its list of owners, and then its tombstone, when the tombstone is old
// enough. It reports whether it has removed the backups.
func (r *Records) removeDeleted(ctx context.Context, name string, p Plane) (bool, error) {
	content, err := r.store.Get(ctx, name)
	if errors.Is(err, ErrNotFound) { // hosting of another management cluster has removed it since the list
		return false, nil
	}
	if err != nil {
		return false, err
	}
	mark, err := parseTombstone(content)
	if err != nil {
		return false, err
	}
	// The age is read after the content: when another owner replaces the tombstone meanwhile, the age is that of the new
	// one.
	age, err := r.store.Age(ctx, name)
	if errors.Is(err, ErrNotFound) || err == nil && age < KeepLocked(r.store, KeepDeleted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, err := r.owners(ctx, p)
	if err != nil {
		return false, err
	}
	if !mark.isOf(have.last()) {
		return false, r.store.Delete(ctx, name)
	}
	names, err := r.store.List(ctx, p.prefix())
	if err != nil {
		return false, err
	}
	for _, object := range append(names, ownersPrefix+p.String()) {
		if err := r.store.Delete(ctx, object); err != nil {
			return false, err
		}
	}
	return true, r.store.Delete(ctx, name)
}
