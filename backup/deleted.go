package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// KeepDeleted is how long the backups of a deleted cluster stay.
const KeepDeleted = 7 * 24 * time.Hour

// deletedPrefix is the prefix of the tombstones of deleted clusters. No namespace begins with a dot.
const deletedPrefix = ".deleted/"

// MarkDeleted stores that a plane's cluster is deleted: RemoveDeleted removes its backups after KeepDeleted. Of several
// calls the first counts.
func MarkDeleted(ctx context.Context, store Store, p Plane, now time.Time) error {
	name := deletedPrefix + p.String()
	if _, err := store.Get(ctx, name); !errors.Is(err, ErrNotFound) {
		return err
	}
	return store.Put(ctx, name, []byte(now.UTC().Format(time.RFC3339)))
}

// Exists reports whether the store has a backup of a plane whose cluster was not deleted. A tombstone means that a
// cluster of the same name is another one.
func Exists(ctx context.Context, store Store, p Plane) (bool, error) {
	if _, err := store.Get(ctx, deletedPrefix+p.String()); !errors.Is(err, ErrNotFound) {
		return false, err
	}
	chains, err := Chains(ctx, store, p)
	return len(chains) > 0, err
}

// RemoveDeleted removes the backups of all clusters that were deleted more than KeepDeleted before now. Where isUsed
// reports that a cluster of the name exists again, it removes the tombstone instead. It returns how many planes lost
// their backups.
func RemoveDeleted(ctx context.Context, store Store, isUsed func(Plane) bool, now time.Time) (n int, err error) {
	tombstones, err := store.List(ctx, deletedPrefix)
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
			failed = append(failed, store.Delete(ctx, name))
			continue
		}
		isRemoved, err := removeDeleted(ctx, store, name, p, now)
		if err != nil {
			failed = append(failed, fmt.Errorf("the backups of the deleted cluster %s: %w", p, err))
		}
		if isRemoved {
			n++
		}
	}
	return n, errors.Join(failed...)
}

// removeDeleted removes the backups of one plane, and then its tombstone, when that is old enough.
func removeDeleted(ctx context.Context, store Store, tombstone string, p Plane, now time.Time) (bool, error) {
	content, err := store.Get(ctx, tombstone)
	if err != nil {
		return false, err
	}
	at, err := time.Parse(time.RFC3339, string(content))
	if err != nil {
		return false, fmt.Errorf("%w: its tombstone is no time: %w", ErrCorrupt, err)
	}
	if now.Sub(at) < KeepDeleted {
		return false, nil
	}
	names, err := store.List(ctx, p.prefix())
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if err := store.Delete(ctx, name); err != nil {
			return false, err
		}
	}
	return true, store.Delete(ctx, tombstone)
}
