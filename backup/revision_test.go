package backup

import (
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"
)

// A plane writes, is backed up and is restored again and again, under a clock that jumps. No restore goes on with a
// revision that the plane has served, as long as it writes less than a day's revisions after those that are known.
func TestI1NoRestoreRepeatsARevision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
		var revision, known int64 = 1, 1
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				most := min(known+unknownRevisions-1-revision, revisionsPerSecond*3600)
				revision += rapid.Int64Range(0, max(most, 0)).Draw(t, "writes")
			},
			"store": func(*rapid.T) { known = revision },
			"the clock jumps": func(t *rapid.T) {
				days := rapid.IntRange(-4000, 4000).Draw(t, "days")
				clock = time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC).AddDate(0, 0, days)
			},
			"time passes": func(t *rapid.T) {
				clock = clock.Add(time.Duration(rapid.IntRange(0, 1e6).Draw(t, "seconds")) * time.Second)
			},
			"restore": func(t *rapid.T) {
				next := NextRevision(clock, known)
				if next <= revision {
					t.Fatalf("at %s the plane goes on with revision %d after %d, of which %d was known", clock, next, revision,
						known)
				}
				revision, known = next, next // its first chain, or its etcd, shows it
			},
		})
	})
}

// Whatever a plane says its revision is, the result is a revision.
func TestTheNextRevisionHasBounds(t *testing.T) {
	now := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	byTime := NextRevision(now, 0)
	for _, c := range []struct {
		at          time.Time
		known, want int64
	}{
		{now, 5, byTime},
		{now, -7, byTime},
		{now, math.MinInt64, byTime},
		{now, byTime, byTime + unknownRevisions},
		{now, math.MaxInt64, byTime},
		{now, byTime + maxAhead + 1, byTime},
		{now, byTime + maxAhead, byTime + maxAhead + unknownRevisions},
		{now.AddDate(-10, 0, 0), 5, 5 + unknownRevisions},
		{time.Time{}, byTime, byTime + unknownRevisions},
	} {
		if got := NextRevision(c.at, c.known); got != c.want {
			t.Errorf("at %s, with %d known: %d, want %d", c.at, c.known, got, c.want)
		}
	}
}

// The newest chain shows the highest revision of a plane, also when the clock was set back before it began. A
// damaged object hides the revisions of its chain only.
func TestI1ABackupShowsTheHighestRevision(t *testing.T) {
	store := newMemoryStore()
	var events []*mvccpb.Event
	follow := func(t *testing.T, use func(*world)) {
		etcd, dial, stopEtcd := startEtcd()
		etcd.events = slices.Clone(events)
		w := &world{t: t, etcd: etcd, store: store, stopEtcd: stopEtcd}
		w.f = New(Options{Plane: testPlane, Dial: dial, Store: store, KMS: testKeys(t), Spool: t.TempDir()})
		w.run()
		use(w)
		w.stop()
		stopEtcd()
		events = etcd.events
	}
	check := func(t *testing.T, when string, least int64) {
		t.Helper()
		got, err := HighestRevision(t.Context(), store, testKeys(t), testPlane)
		if err != nil || got < least || got > int64(len(events)) {
			t.Errorf("%s: the highest revision is %d of %d, want %d at least, %v", when, got, len(events), least, err)
		}
	}
	check(t, "without a backup", 0)
	synctest.Test(t, func(t *testing.T) {
		sleep(24 * time.Hour) // so much ahead is the clock
		follow(t, func(w *world) { w.write(50, time.Second); sleep(10 * time.Second) })
		follow(t, func(w *world) { w.write(50, time.Second); sleep(10 * time.Second) })
		check(t, "two chains", 100)
		reads := 0
		store.setFault(func(op, _ string) error {
			if op == "get" {
				reads++
			}
			return nil
		})
		check(t, "two chains", 100)
		if reads > 3 { // manifest, last segment, mark
			t.Errorf("%d objects were read, and the newest chain has it", reads)
		}
		store.setFault(nil)
	})
	synctest.Test(t, func(t *testing.T) { // the clock was set back
		follow(t, func(w *world) { w.write(50, time.Second); sleep(10 * time.Second) })
		check(t, "with a clock that was set back", 150)
		if got := NextRevision(time.Now(), 150); got <= 150 {
			t.Errorf("the next revision is %d", got)
		}
		chains, err := Chains(t.Context(), store, testPlane)
		if err != nil || len(chains) != 3 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		names, err := store.List(t.Context(), testPlane.prefix()+chains[2].Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			good := store.content(name)
			store.replace(name, flip(good, len(good)/2))
			check(t, "with a damaged "+name, 100)
			store.replace(name, good)
			if strings.Contains(name, partPrefix) {
				check(t, "again", 150)
			}
		}
	})
}
