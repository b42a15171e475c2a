package backup

import (
	"context"
	"errors"
	"slices"
	"time"

	"atoll.dev/envelope"
)

const (
	// revisionsPerSecond is higher than the rate at which an etcd can write revisions for long.
	revisionsPerSecond = 10_000
	// unknownRevisions is higher than the number of revisions that an etcd writes while no process stores or reads its
	// revision: those of a day at that rate, or of three months with 100 writes a second.
	unknownRevisions = 24 * 60 * 60 * revisionsPerSecond
	// maxAhead is by how much a revision can be ahead of the time: 3,500 years at that rate.
	maxAhead = 1 << 50
)

// NextRevision returns a revision for an etcd that is restored now. It is higher than every revision that this etcd has
// had, also when the etcd was restored before. NextRevision computes it from the time, because the revisions after the
// backup may be unknown. So that a clock that was set back repeats no revision, the result is also higher, by a margin,
// than known, the highest known revision. A known revision that no etcd reaches does not count: only a hostile plane
// has it, and the next write of the restored etcd would be its last.
func NextRevision(now time.Time, known int64) int64 {
	epoch := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	byTime := max(int64(now.Sub(epoch)/time.Second), 0) * revisionsPerSecond
	if known < 0 || known > byTime+maxAhead {
		return max(byTime, unknownRevisions)
	}
	return max(byTime, known+unknownRevisions)
}

// HighestRevision returns the highest revision in the backup of a plane, and 0 without a backup. It reads the end of
// the chain with the greatest generation. When a chain shows no generation, an earlier version wrote it at an unknown
// time, and HighestRevision reads the ends of all chains. It skips chains whose end is damaged or missing.
func HighestRevision(ctx context.Context, store Store, kms envelope.KMS, plane Plane) (int64, error) {
	chains, err := Chains(ctx, store, plane)
	if err != nil || len(chains) == 0 {
		return 0, err
	}
	highest, least := int64(0), 0 // least: the generation from which on chains are read
	for _, c := range slices.Backward(chains) {
		if c.Generation < least {
			break
		}
		end, err := newReader(store, kms, plane, c).readEnd(ctx)
		highest = max(highest, end.Revision)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if err == nil && chains[0].Generation > 0 {
			least = c.Generation
		}
	}
	return highest, nil
}
