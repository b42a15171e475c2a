package backup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Chains of a history are arranged as they began, whatever times their names have and whatever order the store lists
// them in. The history has versions without generations before and between, lost order objects, and owners that were
// superseded while they took a snapshot.
func TestI1ChainsAreArrangedAsTheyBegan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		taken := func() time.Time {
			return time.Date(2026, 11, 28, 0, 0, rapid.IntRange(-1e6, 1e6).Draw(t, "time"), 0, time.UTC)
		}
		var began []evidence // as they began
		revision, generation := int64(1), 0
		for i := range rapid.IntRange(0, 4).Draw(t, "before") { // by an earlier version, under a clock that goes forward
			at := time.Date(2026, 11, 1, i, 0, 0, 0, time.UTC)
			began = append(began, evidence{chain: Chain{Name: fmt.Sprintf("%s-%08x", at.Format(chainTime), random.Uint32())},
				revision: revision, isOlder: true})
			revision += int64(rapid.IntRange(0, 3).Draw(t, "writes"))
		}
		for range rapid.IntRange(1, 8).Draw(t, "ordered") {
			if generation == 0 || rapid.IntRange(0, 4).Draw(t, "superseded") > 0 {
				generation++
			} else {
				revision++ // a new owner begins with a higher revision
			}
			began = append(began, evidence{chain: Chain{Name: fmt.Sprintf("%s-%08x", taken().Format(chainTime),
				random.Uint32()), Order: Order{Generation: generation}}, revision: revision})
			revision += int64(rapid.IntRange(1, 3).Draw(t, "writes"))
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "after") { // by an earlier version again
			at := time.Date(2026, 10, 1, i, 0, 0, 0, time.UTC)
			began = append(began, evidence{chain: Chain{Name: fmt.Sprintf("%s-%08x", at.Format(chainTime), random.Uint32())},
				revision: revision})
		}
		list := slices.Clone(began)
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		got, left := arrange(list)
		if len(left) > 0 {
			t.Fatal(left)
		}
		for i := range began {
			if got[i].chain.Name != began[i].chain.Name {
				t.Fatalf("%s is at place %d, and %s began then", got[i].chain.Name, i, began[i].chain.Name)
			}
		}
	})
}

// A chain whose order nothing shows is left out. The reason names both chains and the next step.
func TestAChainWithAnUnknownOrderIsLeftOut(t *testing.T) {
	named := func(name string, generation int, revision int64, damage error) evidence {
		return evidence{chain: Chain{Name: name, Order: Order{Generation: generation}}, revision: revision, damage: damage}
	}
	damage := fmt.Errorf("a manifest: %w", ErrCorrupt)
	for what, list := range map[string][]evidence{
		"no generation and a damaged manifest": {named("a", 0, 0, damage), named("b", 3, 7, nil)},
		"no generation and a lower revision":   {named("a", 0, 6, nil), named("b", 3, 7, nil)},
		"one generation and a damaged manifest": {named("a", 3, 0, damage), named("b", 3, 7, nil),
			named("c", 2, 7, nil)},
	} {
		got, left := arrange(list)
		err := errors.Join(left...)
		if len(left) != 1 || len(got) != len(list)-1 || !errors.Is(err, ErrCorrupt) ||
			!strings.Contains(err.Error(), "a") || !strings.Contains(err.Error(), "b") ||
			!strings.Contains(err.Error(), "delete") {
			t.Errorf("%s: %v, and left out: %v", what, got, err)
		}
	}
	bad := named("a", 0, 0, damage)
	bad.chain.BadOrder, bad.isOlder = errors.New("two orders"), true
	got, left := arrange([]evidence{bad, named("b", 3, 7, nil)})
	if err := errors.Join(left...); len(got) != 1 || !errors.Is(err, ErrCorrupt) ||
		!strings.Contains(err.Error(), "two orders") || !strings.Contains(err.Error(), "delete") {
		t.Errorf("two orders and a damaged manifest: %v, and left out: %v", got, err)
	}
	got, left = arrange([]evidence{named("b", 3, 0, nil), named("a", 2, 0, damage), named("a2", 2, 0, damage)})
	if len(left) > 0 || got[2].chain.Name != "b" {
		t.Errorf("damaged manifests of older chains: %v, and left out: %v", got, left)
	}
}

// When its context ends while a manifest is read, read returns that, and takes the manifest neither for read nor for
// damaged.
func TestAReadThatIsCancelledShowsNothing(t *testing.T) {
	for what, content := range map[string][]byte{"a manifest": nil, "a damaged one": []byte("x")} {
		store := newMemoryStore()
		for _, objects := range earlier(t) {
			store.add(objects)
		}
		chains, err := Chains(t.Context(), store, testPlane)
		if err != nil || len(chains) != 3 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		r := newReader(store, testKeys(t), testPlane, chains[0])
		if content != nil {
			store.replace(r.prefix+manifestObject, content)
		}
		ctx, cancel := context.WithCancel(t.Context())
		store.setFault(func(string, string) error { cancel(); return nil })
		e := evidence{chain: chains[0]}
		if err := e.read(ctx, r); !errors.Is(err, context.Canceled) || e != (evidence{chain: chains[0]}) {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
}

// Names of order objects are read as they are written, and others are refused.
func TestNamesOfOrderObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Order{Generation: rapid.IntRange(1, maxGeneration).Draw(t, "generation"),
			Period: time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(t, "period")).UTC()}
		if got, err := parseOrder(want.objectName()); err != nil || got != want {
			t.Fatalf("%s is read as %+v, %v", want.objectName(), got, err)
		}
	})
	good := Order{Generation: 1, Period: time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)}.objectName()
	for _, names := range [][]string{{"order-"}, {"order-00000000-20261128T000000.000Z"}, {"order-1-20261128T000000.000Z"},
		{"order-00000001-20261399T000000.000Z"}, {good, "order-00000002-20261128T000000.000Z"}} {
		if o, err := orderOf("p/", names); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), names[0]) ||
			o != (Order{}) {
			t.Errorf("%q show %+v, %v", names, o, err)
		}
	}
}

// Somebody without keys stores a name with a generation that no chain can have. The chain that runs goes on, no
// manifest repeats that generation, and the error names what to delete. Then chains begin again, with the generations
// of before.
func TestI1APlantedGenerationIsRepeatedByNoManifest(t *testing.T) {
	for _, generation := range []int{maxGeneration, maxGeneration - 5, 2 * unsealedLimit} {
		for _, objects := range [][]string{{}, {manifestObject}} {
			synctest.Test(t, func(t *testing.T) {
				c := newClocks(t)
				c.runOn(0)
				c.write(10 * time.Second)
				planted := testPlane.prefix() + "20000101T000005.000Z-0123abcd/"
				objects := append(objects, Order{Generation: generation, Period: c.now()}.objectName())
				for _, name := range objects {
					c.store.replace(planted+name, []byte("x"))
				}
				if _, _, err := nextOrder(t.Context(), c.store, testKeys(t), testPlane, c.now()); !errors.Is(err, ErrCorrupt) ||
					!strings.Contains(err.Error(), planted) || !strings.Contains(err.Error(), "delete") {
					t.Errorf("with generation %d: %v", generation, err)
				}
				c.f.Renew()
				c.write(10 * time.Second)
				if s := c.f.State(); s.Failing != "" || c.now().Sub(s.Stored) > 10*time.Second {
					t.Errorf("the chain that runs: %+v at %s", s, c.now())
				}
				c.stop()
				c.runOn(0)
				sleep(failingAfter + 10*time.Second)
				if s := c.f.State(); !strings.Contains(s.Failing, planted) {
					t.Errorf("the next follower: %+v", s)
				}
				for _, name := range objects {
					c.store.replace(planted+name, nil)
				}
				c.write(30 * time.Second)
				sleep(10 * time.Second)
				c.stop()
				c.checkLatest()
				chains, err := Chains(t.Context(), c.store, testPlane)
				if err != nil || len(chains) != 2 || chains[1].Generation != 2 {
					t.Errorf("the chains are %+v, %v", chains, err)
				}
			})
		}
	}
}

// Attempts that were never finished count, however many, and so do chains whose manifests nobody can read any more.
func TestTheNextGenerationIsGreaterThanThoseOfUnfinishedChains(t *testing.T) {
	store, now := newMemoryStore(), time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	add := func(generation int, object string) {
		prefix := fmt.Sprintf("%s%s-%08x/", testPlane.prefix(), now.Format(chainTime), generation)
		store.replace(prefix+Order{generation, now}.objectName(), []byte("x"))
		store.replace(prefix+object, []byte("x"))
	}
	check := func(want int) {
		t.Helper()
		if o, _, err := nextOrder(t.Context(), store, testKeys(t), testPlane, now); err != nil || o.Generation != want {
			t.Errorf("the next generation is %d, not %d, %v", o.Generation, want, err)
		}
	}
	check(1)
	for i := range unsealedLimit {
		add(i+1, partName(0))
	}
	check(unsealedLimit + 1)
	add(3*unsealedLimit, manifestObject)
	check(3*unsealedLimit + 1)
}

// The chains of a moment are those of the last period that began before it.
func TestChainsAtAMoment(t *testing.T) {
	day := func(hour, minute int) time.Time { return time.Date(2026, 11, 28, hour, minute, 0, 0, time.UTC) }
	chains := []Chain{
		{Name: "old1", Taken: day(8, 0)}, {Name: "old2", Taken: day(9, 0)}, // of an earlier version
		{Name: "a1", Taken: day(10, 1), Order: Order{1, day(10, 0)}},
		{Name: "a2", Taken: day(11, 1), Order: Order{2, day(10, 0)}}, // until 12:00
		{Name: "b1", Taken: day(10, 35), Order: Order{3, day(10, 30)}},
		{Name: "b2", Taken: day(11, 35), Order: Order{4, day(10, 30)}},
		{Name: "c1", Taken: day(11, 50), Order: Order{5, day(11, 45)}},
	}
	for at, want := range map[time.Time]string{
		day(7, 0): "none", day(7, 59).Add(59500 * time.Millisecond): "none", day(8, 30): "old1",
		day(9, 30): "old1 old2", day(10, 1): "a1", day(10, 29): "a1",
		day(10, 0): "", day(10, 32): "", day(10, 40): "b1", day(11, 10): "b1", day(11, 40): "b1 b2", day(11, 46): "",
		day(11, 50): "c1", day(23, 0): "c1",
	} {
		from, to, ok := chainsAt(chains, at)
		var got []string
		for _, c := range chains[from:to] {
			got = append(got, c.Name)
		}
		if text := strings.Join(got, " "); ok && text != want || !ok && want != "none" {
			t.Errorf("%s restores from %q, %v, not %q", at, text, ok, want)
		}
	}
	for i, want := range []time.Time{day(9, 0), day(10, 0), day(10, 30), day(10, 30), day(11, 35), day(11, 45), {}} {
		if until := Until(chains, i); !until.Equal(want) {
			t.Errorf("%s restores until %s, not %s", chains[i].Name, until, want)
		}
	}
	again := append(slices.Clone(chains), Chain{Name: "old3", Taken: day(12, 0)}, Chain{Name: "old4", Taken: day(13, 0)})
	for i, want := range []time.Time{day(9, 0), day(10, 0), day(10, 30), day(10, 30), day(11, 35), day(11, 45), day(12, 0),
		day(13, 0), {}} {
		if until := Until(again, i); !until.Equal(want) {
			t.Errorf("before an earlier version, %s restores until %s, not %s", again[i].Name, until, want)
		}
	}
	if from, to, ok := chainsAt(nil, day(8, 0)); from != to || ok {
		t.Error("there are chains of no plane")
	}
	part := 500 * time.Millisecond
	restarted := []Chain{{Taken: day(8, 1).Add(part), Order: Order{1, day(8, 1).Add(part)}},
		{Taken: day(9, 1).Add(part), Order: Order{2, day(9, 1).Add(part)}}}
	for at, want := range map[time.Time][2]int{day(8, 1): {0, 1}, day(9, 0): {0, 1}, day(9, 1): {0, 2},
		day(9, 1).Add(part): {1, 2}} {
		if from, to, _ := chainsAt(restarted, at); from != want[0] || to != want[1] {
			t.Errorf("%s restores from chains %d to %d, not %v", at, from, to, want)
		}
	}
}

// A clock that is set back begins a period, no later than the time that it showed then. Nothing else begins one, also
// when the two clocks are not read at once.
func TestAClockThatIsSetBackBeginsAPeriod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wall, mono := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC), time.Now()
		late := 0 // so many readings have the monotonic clock too late
		c := clock{now: func() (time.Time, time.Time) {
			if late--; late >= 0 {
				return wall, mono.Add(time.Second)
			}
			return wall, mono
		}}
		period := c.read().period
		for range rapid.IntRange(1, 20).Draw(t, "readings") {
			passed := time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond
			before := time.Duration(rapid.Float64Range(0, 1).Draw(t, "part") * float64(passed))
			step := time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 2, -2, -300, -3000, -1e7, 1e7}).Draw(t, "step")) *
				time.Millisecond
			begun := wall.Add(before + step) // what the clock shows right after the step
			wall, mono = wall.Add(passed+step), mono.Add(passed)
			if late = 0; step == 0 {
				late = rapid.IntRange(0, readTries-1).Draw(t, "late")
			}
			got := c.read()
			if !got.now.Equal(wall) {
				t.Fatalf("the time is %s, not %s", got.now, wall)
			}
			switch {
			case step < 0:
				if got.period.After(begun) || got.period.Before(begun.Add(-before-time.Millisecond)) {
					t.Fatalf("the clock was set back to %s within %s, and the period begins at %s", begun, passed, got.period)
				}
				period = got.period
			case !got.period.Equal(period):
				t.Fatalf("the clock was not set back, and a period begins at %s", got.period)
			}
		}
	})
}
