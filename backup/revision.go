package backup

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"atoll.dev/envelope"
)

const (
	// revisionsPerSecond is more than an etcd can write in each second for long.
	revisionsPerSecond = 10_000
	// unknownRevisions is more than an etcd writes while nobody stores or reads its revision: those of a day at that
	// rate, and of three months with 100 writes a second.
	unknownRevisions = 24 * 60 * 60 * revisionsPerSecond
)

// NextRevision returns a revision for an etcd that is restored now: higher than any that it has had, also when it was
// restored before. It counts time, because nobody may know which revisions came after the backup. A clock that was set
// back repeats no revision: known is the highest one that is known, and NextRevision leaves a margin after it.
func NextRevision(now time.Time, known int64) int64 {
	epoch := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	byTime := max(int64(now.Sub(epoch)/time.Second), 0) * revisionsPerSecond
	known = max(known, 0)
	return max(byTime, known+min(unknownRevisions, math.MaxInt64-known))
}

// HighestRevision returns the highest revision that the backup of a plane shows, and 0 without a backup. now is the
// time of a clock that may have been set back: chains of before have later names then, and those since are among the
// earlier ones, so that HighestRevision reads the end of each. Otherwise the newest chain has it. Damaged and missing
// objects show no revision; the chain before them does.
func HighestRevision(ctx context.Context, store Store, kms envelope.KMS, plane Plane, now time.Time) (int64, error) {
	chains, err := Chains(ctx, store, plane)
	if err != nil {
		return 0, err
	}
	highest := int64(0)
	for _, c := range slices.Backward(chains) {
		r := &chainReader{store: store, kms: kms, chain: c, prefix: plane.prefix() + c.Name + "/"}
		end, err := r.readEnd(ctx)
		highest = max(highest, end.Revision)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if isSetBack := chains[len(chains)-1].Taken.After(now); err == nil && !isSetBack {
			break
		}
	}
	return highest, nil
}
