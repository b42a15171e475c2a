package region

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"atoll.dev/backup"
	"atoll.dev/envelope"
)

// deleteExpired deletes the base backups, WAL and files that no restore to a moment within o.Keep needs. It returns how
// many objects it has deleted. An archive that cannot be read, or an object that cannot be deleted, stops no other; the
// error is the last one.
func deleteExpired(ctx context.Context, o Options, current archive, now time.Time) (n int, err error) {
	names, err := o.Store.List(ctx, regionPrefix(o.Region))
	if err != nil {
		return 0, err
	}
	archives, files := sortContents(o.Region, names)
	oldest := now.Add(-backup.KeepLocked(o.Store, o.Keep))
	var expired []string
	r := &restorer{store: o.Store, opener: envelope.NewOpener(o.KMS), region: o.Region}
	for i, a := range archives {
		isExpired, failed := false, error(nil)
		if a.name != current {
			isExpired, failed = r.isExpired(ctx, a, archives[i+1:], oldest)
		}
		more := manifestsFirst(a.all)
		if failed == nil && !isExpired {
			more, failed = r.expireWithin(ctx, a, oldest)
		}
		if failed != nil {
			err = failed
			continue
		}
		expired = append(expired, more...)
	}
	for i := 0; i+1 < len(files); i++ {
		next, failed := timeOf(files[i+1], regionPrefix(o.Region)+filesPrefix)
		if failed == nil && next.Before(oldest) {
			expired = append(expired, files[i])
		}
	}
	for _, name := range expired {
		if failed := o.Store.Delete(ctx, name); failed != nil { // for example, the store locks the object
			err = failed
			continue
		}
		n++
	}
	return n, err
}

// isExpired reports whether no restore needs an archive: it covers no moment after oldest, and a later archive has a
// base backup that was complete at oldest. So an archive that another server still writes is not expired.
func (r *restorer) isExpired(ctx context.Context, a content, later []content, oldest time.Time) (bool, error) {
	k, err := r.readMark(ctx, a)
	if err != nil || !lastMoment(a.pieces, k).Before(oldest) {
		return false, err
	}
	for _, l := range later {
		m, ok, err := r.firstManifest(ctx, l)
		if err != nil {
			return false, err
		}
		if ok && !m.Complete.Time.After(oldest) {
			return true, nil
		}
	}
	return false, nil
}

// firstManifest returns the manifest of the oldest base backup of an archive that is not damaged: restores skip damaged
// ones. It returns false when there is none.
func (r *restorer) firstManifest(ctx context.Context, a content) (m Manifest, ok bool, err error) {
	for _, base := range a.bases {
		m, err := r.readManifest(ctx, a, base)
		if errors.Is(err, backup.ErrCorrupt) {
			continue
		}
		return m, err == nil, err
	}
	return Manifest{}, false, nil
}

// expireWithin returns the objects of an archive that are needed only by restores to moments before oldest.
func (r *restorer) expireWithin(ctx context.Context, a content, oldest time.Time) (expired []string, err error) {
	prefix := r.prefixOf(a)
	parts := map[string][]string{} // the names of each base backup's objects
	newest := ""                   // base backup; it may be in progress
	for _, name := range manifestsFirst(a.all) {
		base, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "/")
		if isBase(base) {
			parts[base] = append(parts[base], name)
			newest = max(newest, base)
		}
	}
	for base, names := range parts {
		if base != newest && !slices.Contains(a.bases, base) {
			expired = append(expired, names...) // it was interrupted, and is never continued
		}
	}
	slices.Sort(expired)
	for i, base := range slices.Backward(a.bases) {
		if at, err := timeOf(base, basePrefix); i == 0 || err != nil || !at.Before(oldest) {
			continue
		}
		m, err := r.readManifest(ctx, a, base)
		if errors.Is(err, backup.ErrCorrupt) {
			continue // restores use the base backup before it
		}
		if err != nil {
			return nil, err
		}
		if m.Complete.Time.After(oldest) {
			continue // restores to moments before its completion need the base backup before it
		}
		for _, earlier := range a.bases[:i] {
			expired = append(expired, parts[earlier]...)
		}
		for _, p := range a.pieces {
			if p.End <= segmentStart(m.Start, m.SegmentSize) {
				expired = append(expired, prefix+p.name())
			}
		}
		break
	}
	return expired, nil
}

// manifestsFirst returns the names with those of manifests first, so that a half-deleted base backup has no manifest
// and is not restored from.
func manifestsFirst(names []string) []string {
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		switch isA, isB := strings.HasSuffix(a, "/"+manifestObject), strings.HasSuffix(b, "/"+manifestObject); {
		case isA == isB:
			return 0
		case isA:
			return -1
		}
		return 1
	})
	return sorted
}
