package resync

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"atoll.dev/api/work"
	"atoll.dev/internal/digest"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
)

// TestComparingBucketsIsComparing: for any two sides, the comparison of the
// works in buckets that differ orders exactly what the comparison of all would,
// but for what is under deletion on both sides; and any other choice of
// buckets orders a part of that.
func TestComparingBucketsIsComparing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) map[string]work.WorkState {
			m := map[string]work.WorkState{}
			for _, n := range rapid.SliceOfN(rapid.IntRange(0, 40), 0, 40).Draw(t, label) {
				id := fmt.Sprintf("w%d", n)
				m[id] = ledger.ComparableState(work.WorkState{
					ID: work.ID(id), Version: rapid.Int64Range(1, 2).Draw(t, "version"), Deleting: rapid.IntRange(0, 4).Draw(
						t, "deleting") == 0,
					Status: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "status"),
				})
			}
			return m
		}
		ours, theirs := draw("ours"), draw("theirs")
		bits := rapid.IntRange(0, 6).Draw(t, "bits")
		oursList, theirsList := slices.Collect(maps.Values(ours)), slices.Collect(maps.Values(theirs))
		compare := func(scope func(work.ID) bool) (c ledger.Comparison, ask []work.StatusHash) {
			var held0 []ledger.WantedWork
			for _, w := range ours {
				if scope(w.ID) {
					held := delivery.Work{ID: w.ID, Generation: w.Version, Deleting: w.Deleting}
					held0 = append(held0, ledger.WantedWork{Work: held})
				}
			}
			var versions []work.SpecVersion
			var listed []work.WorkState
			for _, w := range theirs {
				if scope(w.ID) {
					versions = append(versions, work.SpecVersion{ID: w.ID, Version: w.Version})
					listed = append(listed, w)
				}
			}
			return ledger.Compare(held0, versions), differingStatuses(oursList, listed)
		}
		full, fullAsk := compare(func(work.ID) bool { return true })

		chosen := rapid.SliceOf(rapid.IntRange(0, 1<<bits-1)).Draw(t, "buckets")
		part, partAsk := compare(func(id work.ID) bool { return slices.Contains(chosen, digest.Bucket(string(id), bits)) })
		for _, h := range part.Send {
			if !slices.Contains(full.Send, h) {
				t.Fatalf("a part of the buckets orders %v, all do not", h)
			}
		}
		if len(partAsk) > len(fullAsk) || len(part.Unknown) > len(full.Unknown) {
			t.Fatalf("a part finds more than all")
		}

		if digest.Root(digest.ItemsOf(oursList)) == digest.Root(digest.ItemsOf(theirsList)) {
			for _, h := range full.Send {
				if !h.Deleting {
					t.Fatalf("the same, and %v is to be sent", h)
				}
			}
			if len(full.Unknown)+len(fullAsk) > 0 {
				t.Fatalf("the same, and %v %v", full.Unknown, fullAsk)
			}
			return
		}
		buckets, err := digest.Differing(digest.Buckets(digest.ItemsOf(oursList), bits),
			digest.Buckets(digest.ItemsOf(theirsList), bits), bits)
		if err != nil {
			t.Fatal(err)
		}
		got, gotAsk := compare(func(id work.ID) bool { return slices.Contains(buckets, digest.Bucket(string(id), bits)) })
		for _, h := range full.Send {
			both := h.Deleting && theirs[string(h.ID)].Deleting && theirs[string(h.ID)].Version == h.Generation
			if !both && !slices.Contains(got.Send, h) {
				t.Fatalf("%v is missed", h)
			}
		}
		if !slices.Equal(got.Unknown, full.Unknown) || len(gotAsk) != len(fullAsk) {
			t.Fatalf("unknown %v instead of %v, statuses %v instead of %v", got.Unknown, full.Unknown, gotAsk, fullAsk)
		}
	})
}
