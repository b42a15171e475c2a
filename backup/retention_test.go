package backup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A cluster that lives for two months, with a chain an hour and a collection after each: at any time every period of
// the rule has its snapshot, and no others are kept.
func TestTheRetentionKeepsASnapshotOfEachPeriod(t *testing.T) {
	rule := Retention{Whole: 24 * time.Hour, Hourly: 48, Daily: 7, Weekly: 4}
	begin := time.Date(2026, 11, 2, 0, 20, 0, 0, time.UTC)
	var kept []Chain
	for hour := range 24 * 60 {
		now := begin.Add(time.Duration(hour) * time.Hour)
		kept = append(kept, Chain{Taken: now, Order: Order{Generation: hour + 1}})
		decisions := rule.Decide(kept, now.Add(time.Minute))
		var next []Chain
		whole := 0
		for i, f := range decisions {
			if f != Expire {
				next = append(next, kept[i])
			}
			if f == KeepWhole {
				whole++
			}
		}
		kept = next
		if hour < 24*35 {
			continue
		}
		if whole != 25 {
			t.Fatalf("hour %d: %d chains are whole", hour, whole)
		}
		count := func(period time.Duration, n int) {
			for i := 1; i < n; i++ {
				end := now.Add(-time.Duration(i-1) * period)
				from := end.Add(-period)
				if !slices.ContainsFunc(kept, func(k Chain) bool {
					return k.Taken.After(from) && !k.Taken.After(end)
				}) {
					t.Fatalf("hour %d: nothing is kept of %s to %s", hour, from, end)
				}
			}
		}
		count(time.Hour, 48)
		count(24*time.Hour, 6)
		count(7*24*time.Hour, 4)
		if len(kept) > 48+8+5+1 {
			t.Fatalf("hour %d: %d chains are kept", hour, len(kept))
		}
	}
}

// A plane runs for weeks, with a chain an hour and a collection after each, while the clock jumps by years. The logs of
// the last day stay, and so does a snapshot of each hour before, until a day has passed for each jump.
func TestI1NoJumpOfTheClockExpiresTheLastDay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := DefaultRetention()
		now := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
		var kept []Chain
		jumps := 0
		for generation := 1; generation <= 24*10; generation++ {
			now = now.Add(time.Hour)
			if rapid.IntRange(0, 60).Draw(t, "jump") == 60 {
				now = now.AddDate(0, 0, rapid.IntRange(-800, 800).Draw(t, "days"))
				jumps++
			}
			kept = append(kept, Chain{Taken: now, Order: Order{Generation: generation}})
			var next []Chain
			whole := 0
			for i, d := range rule.Decide(kept, now.Add(time.Minute)) {
				if d != Expire {
					next = append(next, kept[i])
				}
				if d == KeepWhole {
					whole++
				}
			}
			if kept = next; whole < min(generation, 24) {
				t.Fatalf("after %d jumps of the clock %d of %d chains are whole", jumps, whole, generation)
			}
			if jumps == 1 && generation > 40 && !slices.ContainsFunc(kept, func(c Chain) bool {
				return c.Generation <= generation-24 && c.Generation > generation-36
			}) {
				t.Fatalf("no snapshot of the day before is kept: %v", kept)
			}
		}
	})
}

// A chain of an earlier version that ran after this one stays as long as the earlier version kept it, although the list
// of names has it before all others.
func TestTheRetentionKeepsAChainOfAnEarlierVersionThatRanAgain(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	var chains []Chain
	for hour := range 3 {
		chains = append(chains, Chain{Taken: now.Add(time.Duration(hour-5) * time.Hour)})
	}
	for i := range 30 {
		chains = append(chains, Chain{Taken: now.AddDate(0, 0, -5).Add(time.Duration(i) * time.Hour),
			Order: Order{Generation: i + 1}})
	}
	chains = append(chains, Chain{Taken: now.Add(-time.Hour), Order: Order{Generation: 31}})
	for i, d := range DefaultRetention().Decide(chains, now) {
		if i < 3 && d != KeepWhole {
			t.Errorf("the chain of %s has decision %d", chains[i].Taken, d)
		}
	}
}

// Whatever the clock does, the last chain stays whole, and so does every chain that is newer than the clock.
func TestTheRetentionNeverExpiresTheLastChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
		offsets := rapid.SliceOfN(rapid.IntRange(-5000, 100), 1, 30).Draw(t, "hours")
		slices.Sort(offsets)
		var taken []Chain
		for _, o := range offsets {
			taken = append(taken, Chain{Taken: now.Add(time.Duration(o) * time.Hour)})
		}
		rule := Retention{
			Whole:  time.Duration(rapid.IntRange(0, 48).Draw(t, "whole")) * time.Hour,
			Hourly: rapid.IntRange(0, 48).Draw(t, "hourly"), Daily: rapid.IntRange(0, 7).Draw(t, "daily"),
		}
		decisions := rule.Decide(taken, now)
		if decisions[len(decisions)-1] != KeepWhole {
			t.Fatal("the last chain is not whole")
		}
		for i, f := range decisions {
			if taken[i].Taken.After(now) && f != KeepWhole {
				t.Fatalf("a chain of the future has decision %d", f)
			}
		}
	})
}

// While the log of a chain was being deleted, a list showed the chain as one that restores every second, with an end
// that was no longer stored.
func TestAChainWhoseLogIsBeingDeletedRestoresItsSnapshotOnly(t *testing.T) {
	plane := Plane{Namespace: "clusters-1", Name: "hc-1"}
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	const segments = 12
	for done := range segments + 2 { // deletions before the store fails
		store := newMemoryStore()
		var old string
		for _, age := range []time.Duration{30 * time.Hour, 26 * time.Hour, time.Hour} {
			chain := plane.prefix() + now.Add(-age).Format(chainTime) + "-0123abcd/"
			store.replace(chain+manifestObject, []byte("m"))
			if old == "" {
				old = chain
				store.replace(chain+markObject, []byte("m"))
				for n := range segments {
					store.replace(chain+segmentName(n+1), []byte("s"))
				}
			}
		}
		deletions := 0
		store.setFault(func(op, _ string) error {
			if op != "delete" {
				return nil
			}
			if deletions++; deletions > done {
				return errors.New("unavailable")
			}
			return nil
		})
		if _, err := DeleteExpired(t.Context(), store, plane, DefaultRetention(), now); (err == nil) != (done > segments) {
			t.Errorf("after %d deletions: error %v", done, err)
		}
		chains, err := Chains(t.Context(), store, plane)
		if err != nil || len(chains) != 3 {
			t.Fatalf("chains %v, error %v", chains, err)
		}
		isComplete := store.content(old+segmentName(1)) != nil
		if chains[0].Whole != isComplete || isComplete != (chains[0].Segments == segments) {
			t.Errorf("after %d deletions the list shows %+v; the log is complete: %t", done, chains[0], isComplete)
		}
	}
}
