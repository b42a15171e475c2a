package fleet

import (
	"bytes"
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

// runPlacementAdapter places each cluster for which there is a request, as the placement adapter does, until the test
// ends.
func (b *testRegion) runPlacementAdapter() {
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	sub := b.fleet.opts.Feed.Subscribe(func(c *store.Change) bool { return c.Kind == kindRequest && !c.Removed })
	done.Go(func() {
		defer sub.Close()
		for {
			if _, err := sub.Next(ctx); err != nil {
				return
			}
			for _, id := range b.requestedClusters() {
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
}

// Fleet requests work for a waiting cluster when a management cluster appears, grows, is uncordoned or reconnects, and
// when another placement is released. The adapter then places the cluster.
func TestAWaitingClusterIsPlacedWhenThereIsRoom(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	b.runPlacementAdapter()
	waits := func(name string) string {
		t.Helper()
		id := b.cluster(name, `{}`)
		if p := b.place(id); p.State != api.Waiting {
			t.Fatalf("%s is %s on %s", name, p.State, p.ManagementCluster)
		}
		return id
	}
	isPlaced := func(what, id string) {
		t.Helper()
		b.eventually(what+": the cluster is placed", func() bool {
			p, err := b.Placement(ctx, cluster.ID(id))
			return err == nil && p.State == api.Placed && p.ManagementCluster == "one" && p.Reason == ""
		})
	}
	patch := func(id, spec string) {
		t.Helper()
		if _, err := b.Merge(ctx, mcsPath, id, []byte(`{"spec":`+spec+`}`), ""); err != nil {
			t.Fatal(err)
		}
	}
	first := waits("first")
	one := b.createResource(mcsPath, "ManagementCluster", "one", `{"capacity":{"planes":1}}`, nil)
	b.reportConnected(one)
	isPlaced("a management cluster comes", first)
	second := waits("second")
	patch(one, `{"capacity":{"planes":2}}`)
	isPlaced("it grows", second)
	patch(one, `{"state":"Cordoned","capacity":{"planes":4}}`)
	third := waits("third")
	patch(one, `{"state":"Ready"}`)
	isPlaced("it is uncordoned", third)
	b.reportLost(one)
	fourth := waits("fourth")
	b.reportConnected(one)
	isPlaced("its agent is connected again", fourth)
	fifth := waits("fifth")
	if _, err := b.Delete(ctx, clustersPlural, first, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(ctx, cluster.ID(first)); err != nil {
		t.Fatal(err)
	}
	isPlaced("a placement is released", fifth)
	checkEqual(t, "one", b.usage(one, "planes"), "0 free, 4 reserved by 4")
	// The history records that fleet requested the work.
	h, err := b.History(ctx, clustersPlural, fifth, 0, 10)
	if err != nil || !slices.ContainsFunc(h, func(r clm.HistoryRecord) bool {
		return r.Action == "reconcile" &&
			r.Principal == "system:fleet"
	}) {
		t.Errorf("the history is %+v, %v", h, err)
	}
}

// Two processes request work for as many waiting clusters as have room, the oldest first, and for no other.
func TestFleetRequestsOnlyClustersThatHaveRoom(t *testing.T) {
	const waiting, room = 60, 7
	dsn := pgtest.DSN(t)
	b := startOn(t, dsn, Options{})
	startOn(t, dsn, Options{})
	ids := make([]string, waiting)
	for i := range ids {
		ids[i] = b.cluster(fmt.Sprintf("c-%d", i), `{}`)
		b.place(ids[i])
	}
	b.runPlacementAdapter()
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
	b.eventually("all room is taken", func() bool { return len(placed()) == room })
	if diff := cmp.Diff(ids[:room], placed()); diff != "" {
		t.Errorf("the placed clusters are not the oldest: %s", diff)
	}
	// Two processes may request one cluster in two different seconds.
	requested := slices.Compact(b.requestedClusters())
	slices.Sort(ids[:room])
	if diff := cmp.Diff(ids[:room], requested); diff != "" {
		t.Errorf("fleet requested work for other clusters: %s", diff)
	}
}

// compare finds a placement without a cluster, and a sum that differs from the placements, without changes of the feed.
// A placement that fleet cannot decode, which comes before the other one, delays no repair.
func TestCompareRepairsMissedChanges(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	one := b.mc("one", `{"capacity":{"planes":5}}`, nil)
	two := b.mc("two", `{"capacity":{"planes":0}}`, nil)
	kept := b.cluster("kept", `{}`)
	b.place(kept)
	err := b.fleet.store.Tx(ctx, func(tx *store.Tx) error {
		d := store.Document{Kind: KindPlacement, ID: placementID("gone")}
		p := placement{placementRequest{"gone", Demand{Amounts: Amounts{"planes": 1}}}, placementDecision{State: api.Placed,
			ManagementCluster: "one", ManagementClusterID: cluster.ManagementClusterID(one)}}
		if err := p.encodeInto(&d); err != nil {
			return err
		}
		if _, err := tx.Create(ctx, d); err != nil {
			return err
		}
		d.ID = placementID("damaged")
		d.Spec = bytes.ReplaceAll(d.Spec, []byte(`"gone"`), []byte(`"damaged"`))
		if _, err := tx.Create(ctx, d); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update document set status = '{"state": 5}' where id = $1`, d.ID); err != nil {
			return err
		}
		return errors.Join(
			setSum(ctx, tx, cluster.ManagementClusterID(one), sum{9, Amounts{"planes": 4, "memory_mib": 350}}),
			setSum(ctx, tx, cluster.ManagementClusterID(two), sum{1, Amounts{"planes": 1}}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.fleet.compare(ctx); err == nil || !strings.Contains(err.Error(), placementID("damaged")) {
		t.Fatalf("compare with a damaged placement: %v", err)
	}
	// The works of the removed cluster may still run, so its reservation stays.
	checkEqual(t, "one", b.usage(one, "planes"), "3 free, 2 reserved by 2")
	checkEqual(t, "two", b.usage(two, "planes"), "0 free, 0 reserved by 0")
	if d, err := b.fleet.store.Get(ctx, KindPlacement, placementID("gone")); err != nil ||
		!strings.Contains(string(d.Wire), `"state":"Orphaned"`) {
		t.Errorf("the placement of the removed cluster is %s, %v", d.Wire, err)
	}
	if corrected, err := b.fleet.compareSums(ctx); err != nil || corrected != 0 {
		t.Errorf("a second comparison corrects %d sums, %v", corrected, err)
	}
	if p, err := b.Placement(ctx, cluster.ID(kept)); err != nil || p.ManagementCluster != "one" {
		t.Errorf("the other placement: %+v, %v", p, err)
	}
}

// When a management cluster is lost, and when it is connected again, fleet requests work for all its clusters, also
// for those that are being deleted.
func TestFleetRequestsWorkWhenAManagementClusterIsLostOrBack(t *testing.T) {
	b := start(t)
	one := b.createResource(mcsPath, "ManagementCluster", "one", `{"capacity":{"planes":2}}`, nil)
	b.reportConnected(one)
	first, second := b.cluster("first", `{}`), b.cluster("second", `{}`)
	b.place(first)
	b.place(second)
	if _, err := b.Delete(t.Context(), clustersPlural, second, ""); err != nil {
		t.Fatal(err)
	}
	both := []string{first, second}
	slices.Sort(both)
	b.reportLost(one)
	b.eventually(
		"fleet requests both clusters after the loss",
		func() bool { return slices.Equal(b.requestedClusters(), both) },
	)
	b.reportConnected(one)
	b.eventually("fleet requests both clusters after the end of the loss", func() bool {
		return slices.Equal(slices.Compact(b.requestedClusters()), both) && len(
			b.requestedClusters()) == 4
	})
}
