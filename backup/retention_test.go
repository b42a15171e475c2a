package backup

import (
	"errors"
	"fmt"
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

// A plane runs, sleeps and runs again under a clock that goes forward. Then somebody without keys adds names of chains
// that never were. Every real chain that began within the last day stays whole, and so does the one before these. A
// snapshot of before makes room only for one of the same hour, day or week that seems older.
func TestI1ForgedNamesExpireNoRecentChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := DefaultRetention()
		now := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
		var chains []Chain
		first := rapid.IntRange(1, 5000).Draw(t, "first generation")
		for i := range rapid.IntRange(1, 60).Draw(t, "chains") {
			chains = append(chains, Chain{Name: fmt.Sprintf("%s-%08x", now.Format(chainTime), i), Taken: now,
				Order: Order{Generation: first + i}})
			now = now.Add(time.Duration(rapid.SampledFrom([]int{10, 60, 60, 60, 90, 1500, 9000}).Draw(t, "minutes")) *
				time.Minute)
		}
		last := chains[len(chains)-1]
		now = last.Taken.Add(time.Minute)   // a follower deletes when it has begun a chain
		ended := map[string]time.Duration{} // how long ago the next real chain began
		for i, c := range chains {
			ended[c.Name] = now.Sub(chains[min(i+1, len(chains)-1)].Taken)
		}
		for range rapid.IntRange(0, 40).Draw(t, "forged") {
			near := rapid.SampledFrom(chains).Draw(t, "near")
			c := Chain{Taken: near.Taken.Add(time.Duration(rapid.IntRange(-2000, 2000).Draw(t, "minutes")) * time.Minute)}
			if rapid.Bool().Draw(t, "far") {
				c.Taken = time.Date(rapid.IntRange(0, 9999).Draw(t, "year"), 1, 1, 0, 0, 0, 0, time.UTC)
			}
			c.Name = fmt.Sprintf("%s-%s", c.Taken.Format(chainTime), rapid.StringMatching("[0-9a-f]{7}f").Draw(t, "name"))
			c.Generation = rapid.OneOf(rapid.IntRange(near.Generation, near.Generation+1), rapid.IntRange(0, 200),
				rapid.IntRange(last.Generation-40, last.Generation+40), rapid.IntRange(0, maxGeneration)).Draw(t, "generation")
			c.Generation = max(c.Generation, 0)
			chains = append(chains, c)
		}
		slices.SortFunc(chains, compareChains)
		for i, d := range rule.Decide(chains, now) {
			c := chains[i]
			successor, isReal := ended[c.Name]
			if !isReal {
				continue
			}
			age := now.Sub(c.Taken)
			if d != KeepWhole && (age < rule.Whole || successor < rule.Whole) {
				t.Fatalf("%s of %s has decision %d: it is %s old, its successor %s", c.Name, now, d, age, successor)
			}
			for period, n := range map[time.Duration]int{time.Hour: rule.Hourly, 24 * time.Hour: rule.Daily,
				7 * 24 * time.Hour: rule.Weekly} {
				bucket := func(c Chain) int64 { return c.Taken.Unix() / int64(period/time.Second) }
				isFirst := !slices.ContainsFunc(chains[:i], func(other Chain) bool { return bucket(other) == bucket(c) })
				if d == Expire && age < time.Duration(n)*period && isFirst {
					t.Fatalf("%s is the oldest of %s, and expires after %s", c.Name, period, age)
				}
			}
		}
	})
}

// Names of chains that never were, after a chain of 25 hours ago whose log ended 23 hours ago, leave that log.
func TestForgedNamesExpireNoLogThatEndedToday(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	chain := func(hours, generation int) Chain {
		taken := now.Add(-time.Duration(hours) * time.Hour)
		return Chain{Name: taken.Format(chainTime), Taken: taken, Order: Order{Generation: generation}}
	}
	written := []Chain{chain(25, 10), chain(23, 11), chain(0, 12)}
	for _, forged := range []Chain{chain(24, 10), chain(24, 11), chain(30, 11), chain(24, maxGeneration),
		chain(-1e6, maxGeneration), chain(1e6, 11)} {
		chains := append(slices.Repeat([]Chain{forged}, alwaysWhole), written...)
		slices.SortFunc(chains, compareChains)
		for i, d := range DefaultRetention().Decide(chains, now) {
			if d != KeepWhole && slices.Contains(written, chains[i]) {
				t.Errorf("with %d of %s and generation %d: %s has decision %d", alwaysWhole, forged.Name,
					forged.Generation, chains[i].Name, d)
			}
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
