package fleet

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/clm"
	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

func TestAClusterIsPlacedStaysAndIsReleased(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	one := b.mc("one", `{"capacity":{"planes":2},"versions":["1.36.3"]}`, map[string]string{"zone": "a"})
	two := b.mc("two", `{"capacity":{"planes":3}}`, map[string]string{"zone": "b"})
	id := b.cluster(
		"abc",
		`{"placement":{"selector":{"zone":"a"}},"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.3"}}}`)

	_, err := b.Placement(ctx, cluster.ID(id))
	checkError(t, "a placement before there is one", err, 404, codeNotFound)
	p := b.place(id)
	checkEqual(t, "the placement", fmt.Sprintln(p.State, p.ManagementCluster, p.Reserved, p.ClusterID == id),
		"Placed one map[memory_mib:350 planes:1] true\n")
	checkEqual(t, "the decision", fmt.Sprint(p.Decision.Candidates),
		"[{true one [] 500000} {false two [its label zone is b, not a] 0}]")
	checkEqual(t, "one", b.usage(one, "planes"), "1 free, 1 reserved by 1")
	checkEqual(t, "memory, which it does not limit", b.usage(one, "memory_mib"), "- free, 350 reserved by 1")

	// Neither another selector nor the loss and the draining of its management cluster move it.
	if _, err := b.Merge(ctx, clustersPlural, id, []byte(`{"spec":{"placement":{"selector":{"zone":"b"}}}}`),
		""); err != nil {
		t.Fatal(err)
	}
	b.reportLost(one)
	if _, err := b.Merge(ctx, mcsPath, one, []byte(`{"spec":{"state":"Draining"}}`), ""); err != nil {
		t.Fatal(err)
	}
	if again := b.place(id); !cmp.Equal(again, p) {
		t.Fatalf("the placement was %+v, and is %+v", p, again)
	}
	checkEqual(t, "two", b.usage(two, "planes"), "3 free, 0 reserved by 0")

	_, err = b.Delete(ctx, mcsPath, one, "")
	checkError(t, "deleting a management cluster that hosts a cluster", err, 409, codeState)
	checkError(t, "releasing a cluster that is not being deleted", b.Release(ctx, cluster.ID(id)), 409, codeState)
	if _, err := b.Delete(ctx, clustersPlural, id, ""); err != nil {
		t.Fatal(err)
	}
	_, err = b.Place(ctx, cluster.ID(id))
	checkError(t, "placing a cluster that is being deleted", err, 409, codeState)
	checkEqual(t, "the usage during the deletion", b.usage(one, "planes"), "1 free, 1 reserved by 1")
	for range 2 {
		if err := b.Release(ctx, cluster.ID(id)); err != nil {
			t.Fatal(err)
		}
	}
	checkEqual(t, "one at the end", b.usage(one, "planes"), "2 free, 0 reserved by 0")
	b.report(id, 3, "True")
	_, err = b.Place(ctx, cluster.ID(id))
	checkError(t, "placing a removed cluster", err, 404, codeNotFound)
	if err := b.Release(ctx, cluster.ID(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Delete(ctx, mcsPath, one, ""); err != nil {
		t.Fatal(err)
	}
}

func TestWhyAClusterWaits(t *testing.T) {
	b := start(t)
	id := b.cluster("abc", `{}`)
	p := b.place(id)
	checkEqual(
		t,
		"the placement without management clusters",
		fmt.Sprintln(p.State, p.ManagementCluster, p.Reserved, p.Reason),
		"Waiting  map[] there is no management cluster\n",
	)
	b.createResource(mcsPath, "ManagementCluster", "silent", `{}`, nil)
	lost := b.mc("lost", `{}`, nil)
	b.reportLost(lost)
	b.mc("small", `{"capacity":{"planes":0}}`, nil)
	b.mc("strange", `{"capacity":{"planes":"many"}}`, nil)
	p = b.place(id)
	checkEqual(t, "state", p.State, api.Waiting)
	var got []string
	for _, c := range p.Decision.Candidates {
		got = append(got, c.Name+": "+c.Reasons[0][:12])
	}
	checkEqual(t, "the reasons", fmt.Sprint(got),
		"[lost: lost: the la silent: its agent ha small: planes: 0 of strange: its spec can]")
	checkEqual(t, "the reason in words", p.Message, "the region has no room for the cluster at present")
	usage, err := b.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, u := range usage {
		got = append(got, fmt.Sprint(u.Name, u.State, u.LastSeenTime != nil))
	}
	checkEqual(t, "the states", fmt.Sprint(got), "[lostLosttrue silentUnheardfalse smallReadytrue strangeReadytrue]")
}

func TestWhoMayPlace(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	mc := b.mc("one", `{}`, nil)
	mine, others := b.as("mine"), b.as("others")
	r, err := mine.Create(ctx, clustersPlural, resource("abc"), "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = mine.Place(ctx, cluster.ID(r.ID))
	checkError(t, "a tenant that places", err, 403, codeForbidden)
	checkError(t, "a tenant that releases", mine.Release(ctx, cluster.ID(r.ID)), 403, codeForbidden)
	b.place(r.ID)
	if p, err := b.Placement(ctx, cluster.ID(r.ID)); err != nil || p.ManagementCluster != "one" {
		t.Fatalf("%+v, %v", p, err)
	}
	// A tenant reads neither the management cluster of its cluster nor the decision.
	if p, err := mine.Placement(
		ctx,
		cluster.ID(r.ID),
	); err != nil || p.State != api.Placed || p.ManagementCluster != "" ||
		p.Decision != nil || p.Reason != "" ||
		len(p.Reserved) > 0 {
		t.Fatalf("%+v, %v", p, err)
	}
	waits, err := mine.Create(
		ctx,
		clustersPlural,
		clm.ResourceCreate{Kind: "Cluster", Name: "waits", Spec: json.RawMessage(
			`{"placement":{"selector":{"a":"b"}}}`)},
		"",
	)
	if err != nil {
		t.Fatal(err)
	}
	b.place(waits.ID)
	if p, err := mine.Placement(ctx, cluster.ID(waits.ID)); err != nil || p.State != api.Waiting ||
		p.Message != "no place has the labels that the cluster asks for" || p.Reason != "" || p.Decision != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	_, err = others.Placement(ctx, cluster.ID(r.ID))
	checkError(t, "another tenant's", err, 404, codeNotFound)
	// A tenant reads no usage of management clusters.
	_, err = mine.Usage(ctx)
	checkError(t, "a tenant that lists usage", err, 403, codeForbidden)
	_, err = mine.UsageOf(ctx, cluster.ManagementClusterID(mc))
	checkError(t, "a tenant that reads the usage of a management cluster", err, 403, codeForbidden)
}

// Two placements never take the same room: several processes place more
// clusters than there is room for, several times each, at the same time, and
// others are deleted meanwhile.
func TestI2PlacementsAtOnceOverfillNothing(t *testing.T) {
	const processes, clusters, room = 3, 40, 25
	dsn := pgtest.DSN(t)
	var beds []*testRegion
	for range processes {
		beds = append(beds, startOn(t, dsn, Options{}))
	}
	b := beds[0]
	ids := make([]string, clusters)
	for i := range ids {
		ids[i] = b.cluster(fmt.Sprintf("c-%d", i), `{}`)
	}
	mcs := []string{b.mc("one", `{"capacity":{"planes":10,"memory_mib":3600}}`, nil),
		b.mc("two", `{"capacity":{"planes":100,"memory_mib":5250}}`, nil)}
	var wait sync.WaitGroup
	var mu sync.Mutex
	places := map[string]map[string]bool{}
	for i, id := range ids {
		for _, b := range beds {
			wait.Go(func() {
				p, err := b.Place(t.Context(), cluster.ID(id))
				if err != nil {
					t.Errorf("placing %d: %v", i, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if p.State == api.Placed {
					if places[p.ManagementCluster] == nil {
						places[p.ManagementCluster] = map[string]bool{}
					}
					places[p.ManagementCluster][id] = true
				}
			})
		}
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	checkEqual(t, "clusters on one", len(places["one"]), 10)
	checkEqual(t, "clusters on two", len(places["two"]), room-10)
	for id := range places["one"] {
		if places["two"][id] {
			t.Errorf("%s is on both", id)
		}
	}
	checkEqual(t, "one", b.usage(mcs[0], "planes"), "0 free, 10 reserved by 10")
	checkEqual(t, "two", b.usage(mcs[1], "memory_mib"), "0 free, 5250 reserved by 15")

	// Concurrently, all clusters are released and new ones are placed.
	for i, id := range ids {
		wait.Go(func() {
			b := beds[i%processes]
			if _, err := b.Delete(t.Context(), clustersPlural, id, ""); err != nil {
				t.Error(err)
			} else if err := b.Release(t.Context(), cluster.ID(id)); err != nil {
				t.Error(err)
			}
		})
		wait.Go(func() {
			b := beds[(i+1)%processes]
			if _, err := b.Place(t.Context(), cluster.ID(b.cluster(fmt.Sprintf("d-%d", i), `{}`))); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	usage, err := b.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range usage {
		for name, n := range u.Capacity {
			if u.Reserved[name] > n || u.Free[name] != n-u.Reserved[name] {
				t.Errorf("%s: %d of %d %s are reserved, %d free", u.Name, u.Reserved[name], n, name, u.Free[name])
			}
		}
	}
	if mended, err := b.fleet.compareSums(t.Context()); err != nil || mended != 0 {
		t.Errorf("%d sums were not those of the placements: %v", mended, err)
	}
}
