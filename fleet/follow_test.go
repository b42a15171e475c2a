package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// adapt plays the adapter until the test ends: whatever is asked for is placed
// again. It returns how often that was.
func (b *bed) adapt() (asked func() int) {
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var mu sync.Mutex
	n := 0
	sub := b.fleet.opts.Feed.Subscribe(func(c *store.Change) bool { return c.Kind == kindRequest && !c.Removed })
	done.Go(func() {
		defer sub.Close()
		for {
			if _, err := sub.Next(ctx); err != nil {
				return
			}
			for _, id := range b.asked() {
				mu.Lock()
				n++
				mu.Unlock()
				if p, err := b.Placement(ctx, cluster.ID(id)); err == nil && p.State == api.Waiting {
					_, err = b.Place(ctx, cluster.ID(id))
					if remote.StatusOf(err) >= 500 {
						b.t.Error(err)
					}
				}
			}
		}
	})
	b.t.Cleanup(func() { stop(); done.Wait() })
	return func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// No capacity, then capacity, however it appears: the cluster that waits is
// placed without anybody's doing.
func TestAWaitingClusterGoesOnWhenThereIsRoom(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	b.adapt()
	waits := func(name string) string {
		t.Helper()
		id := b.cluster(name, `{}`)
		if p := b.place(id); p.State != api.Waiting {
			t.Fatalf("%s is %s on %s", name, p.State, p.ManagementCluster)
		}
		return id
	}
	goesOn := func(what, id string) {
		t.Helper()
		b.eventually(what+": the cluster goes on", func() bool {
			p, err := b.Placement(ctx, cluster.ID(id))
			return err == nil && p.State == api.Placed && p.ManagementCluster == "one" && p.Reason == ""
		})
	}
	patch := func(id, spec string) {
		t.Helper()
		if _, err := b.Merge(ctx, mcs, id, []byte(`{"spec":`+spec+`}`), ""); err != nil {
			t.Fatal(err)
		}
	}
	first := waits("first")
	one := b.make(mcs, "ManagementCluster", "one", `{"capacity":{"planes":1}}`, nil)
	b.heard(one, true)
	goesOn("a management cluster comes", first)
	second := waits("second")
	patch(one, `{"capacity":{"planes":2}}`)
	goesOn("it grows", second)
	patch(one, `{"state":"Cordoned","capacity":{"planes":4}}`)
	third := waits("third")
	patch(one, `{"state":"Ready"}`)
	goesOn("it is uncordoned", third)
	b.heard(one, false)
	fourth := waits("fourth")
	b.heard(one, true)
	goesOn("its agent is heard again", fourth)
	fifth := waits("fifth")
	if _, err := b.Delete(ctx, clustersOf, first, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(ctx, cluster.ID(first)); err != nil {
		t.Fatal(err)
	}
	goesOn("a placement is released", fifth)
	is(t, "one", b.usage(one, "planes"), "0 free, 4 reserved by 4")
	// Who asked is in the history.
	h, err := b.History(ctx, clustersOf, fifth, 0, 10)
	if err != nil || !slices.ContainsFunc(h, func(r clm.HistoryRecord) bool {
		return r.Action == "reconcile" &&
			r.Principal == "system:fleet"
	}) {
		t.Errorf("the history is %+v, %v", h, err)
	}
}

// Of many that wait, in several processes, as many are asked as there is room
// for, the oldest first, and each once.
func TestNoStormOfThoseThatWait(t *testing.T) {
	const waiting, room = 60, 7
	dsn := pgtest.DSN(t)
	b := startOn(t, dsn, Options{})
	startOn(t, dsn, Options{})
	ids := make([]string, waiting)
	for i := range ids {
		ids[i] = b.cluster(fmt.Sprintf("c-%d", i), `{}`)
		b.place(ids[i])
	}
	b.adapt()
	b.mc("one", fmt.Sprintf(`{"capacity":{"planes":%d}}`, room), nil)
	placed := func() (names []string) {
		for _, id := range ids {
			p, err := b.Placement(t.Context(), cluster.ID(id))
			if err != nil {
				t.Fatal(err)
			}
			if p.State == api.Placed {
				names = append(names, id)
			}
		}
		return names
	}
	b.eventually("there is no room left", func() bool { return len(placed()) == room })
	if diff := cmp.Diff(ids[:room], placed()); diff != "" {
		t.Errorf("others than the oldest are placed: %s", diff)
	}
	// Two processes may ask for one in two seconds; nobody else is asked for.
	asked := slices.Compact(b.asked())
	slices.Sort(ids[:room])
	if diff := cmp.Diff(ids[:room], asked); diff != "" {
		t.Errorf("asked for others: %s", diff)
	}
}

// What no event told of is found by comparing: a placement whose cluster went
// while nobody looked, and a sum that is not that of the placements.
func TestTheSweepFindsWhatWasMissed(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	one := b.mc("one", `{"capacity":{"planes":5}}`, nil)
	two := b.mc("two", `{"capacity":{"planes":0}}`, nil)
	kept := b.cluster("kept", `{}`)
	b.place(kept)
	err := b.fleet.store.Tx(ctx, func(tx *store.Tx) error {
		d := store.Document{Kind: KindPlacement, ID: placementID("gone")}
		p := placement{placementWanted{"gone", Demand{Amounts: Amounts{"planes": 1}}}, placementMade{State: api.Placed,
			ManagementCluster: "one", ManagementClusterID: cluster.ManagementClusterID(one)}}
		if err := p.into(&d); err != nil {
			return err
		}
		if _, err := tx.Create(ctx, d); err != nil {
			return err
		}
		return errors.Join(
			setSum(ctx, tx, cluster.ManagementClusterID(one), sum{9, Amounts{"planes": 4, "memory_mib": 350}}),
			setSum(ctx, tx, cluster.ManagementClusterID(two), sum{1, Amounts{"planes": 1}}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.fleet.compare(ctx); err != nil {
		t.Fatal(err)
	}
	// What is gone may still run: its room is not free yet.
	is(t, "one", b.usage(one, "planes"), "3 free, 2 reserved by 2")
	is(t, "two", b.usage(two, "planes"), "0 free, 0 reserved by 0")
	if d, err := b.fleet.store.Get(ctx, KindPlacement, placementID("gone")); err != nil ||
		!strings.Contains(string(d.Wire), `"state":"Orphaned"`) {
		t.Errorf("the placement of a cluster that is gone: %s, %v", d.Wire, err)
	}
	if mended, err := b.fleet.compareSums(ctx); err != nil || mended != 0 {
		t.Errorf("a second look mends %d, %v", mended, err)
	}
	if p, err := b.Placement(ctx, cluster.ID(kept)); err != nil || p.ManagementCluster != "one" {
		t.Errorf("the other placement: %+v, %v", p, err)
	}
}

// When a management cluster is lost, and when it is back, work is asked for on
// its clusters, those that are being deleted among them: their adapters say it.
func TestClustersOfAManagementClusterThatIsLostAreLookedAt(t *testing.T) {
	b := start(t)
	one := b.make(mcs, "ManagementCluster", "one", `{"capacity":{"planes":2}}`, nil)
	b.heard(one, true)
	first, second := b.cluster("first", `{}`), b.cluster("second", `{}`)
	b.place(first)
	b.place(second)
	if _, err := b.Delete(t.Context(), clustersOf, second, ""); err != nil {
		t.Fatal(err)
	}
	both := []string{first, second}
	slices.Sort(both)
	b.heard(one, false)
	b.eventually("it is lost", func() bool { return slices.Equal(b.asked(), both) })
	b.heard(one, true)
	b.eventually("it is back", func() bool {
		return slices.Equal(slices.Compact(b.asked()), both) && len(
			b.asked()) == 4
	})
}
