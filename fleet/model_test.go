package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// Random operations against a model: a placed cluster never moves, no placement exceeds a capacity or goes to a lost or
// cordoned management cluster, and the reservations always equal the placements.
func TestPlacementsAgainstAModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := start(t)
	ctx := context.Background()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	type mc struct {
		id, name, state string
		planes          int
		connected       bool
	}
	var fleet []*mc
	for i := range 3 {
		m := &mc{name: fmt.Sprintf("m%d", i), state: "Ready", planes: 2, connected: true}
		m.id = b.mc(m.name, `{"capacity":{"planes":2}}`, nil)
		fleet = append(fleet, m)
	}
	places := map[string]string{} // the management cluster of each cluster; "": it waits
	var ids []string
	on := func(name string) (n int) {
		for _, at := range places {
			if at == name {
				n++
			}
		}
		return n
	}
	place := func(id string) {
		t.Helper()
		room := slices.ContainsFunc(fleet, func(m *mc) bool {
			return m.connected && m.state == "Ready" && on(
				m.name) < m.planes
		})
		p := b.place(id)
		switch at := places[id]; {
		case at != "":
			if p.ManagementCluster != at {
				t.Fatalf("the cluster moved from %s to %q", at, p.ManagementCluster)
			}
			return
		case (p.State == api.Placed) != room:
			t.Fatalf("the placement is %s; there is room: %v; %s", p.State, room, p.Reason)
		}
		places[id] = p.ManagementCluster
		if i := slices.IndexFunc(fleet, func(m *mc) bool { return m.name == p.ManagementCluster }); i >= 0 {
			if m := fleet[i]; !m.connected || m.state != "Ready" || on(m.name) > m.planes {
				t.Fatalf("the cluster was placed on %+v, which has %d clusters", *m, on(m.name))
			}
		}
	}
	for step := range 150 {
		m := fleet[random.IntN(len(fleet))]
		switch n := random.IntN(10); {
		case n < 4:
			id := b.cluster(fmt.Sprintf("c-%d", step), `{}`)
			ids, places[id] = append(ids, id), ""
			place(id)
		case n < 6 && len(ids) > 0:
			place(ids[random.IntN(len(ids))])
		case n < 7 && len(ids) > 0:
			i := random.IntN(len(ids))
			id := ids[i]
			_, err := b.Delete(ctx, clustersPlural, id, "")
			check("deleting", err)
			if random.IntN(2) == 0 {
				check("releasing", b.Release(ctx, cluster.ID(id)))
			} else {
				check("ending", b.ForceDelete(ctx, clustersPlural, id, "a test"))
				left := api.PlacementState("")
				if places[id] != "" {
					left = api.Orphaned // until an operator releases it
				}
				b.eventually("fleet handles the placement", func() bool { return b.placementState(id) == left })
				check("freeing", b.ReleaseByForce(ctx, cluster.ID(id), "a test"))
			}
			delete(places, id)
			ids = slices.Delete(ids, i, i+1)
		case n < 8:
			if m.connected = !m.connected; m.connected {
				b.reportConnected(m.id)
			} else {
				b.reportLost(m.id)
			}
		case n < 9:
			m.state = []string{"Ready", "Cordoned", "Draining"}[random.IntN(3)]
			_, err := b.Merge(ctx, mcsPath, m.id, []byte(`{"spec":{"state":"`+m.state+`"}}`), "")
			check("declaring", err)
		default:
			m.planes = random.IntN(4)
			_, err := b.Merge(ctx, mcsPath, m.id, fmt.Appendf(nil, `{"spec":{"capacity":{"planes":%d}}}`, m.planes), "")
			check("growing", err)
		}
		if step%10 == 9 {
			usage, err := b.Usage(ctx)
			check("reading", err)
			for i, u := range usage {
				m := fleet[i]
				state := m.state
				if !m.connected {
					state = "Lost"
				}
				if n := int64(on(m.name)); u.Reserved["planes"] != n || u.Placements != int(n) ||
					u.Capacity["planes"] != int64(m.planes) || string(u.State) != state {
					t.Fatalf("the usage is %+v, and the model has %d clusters on %+v", u, n, *m)
				}
			}
		}
	}
	for id, at := range places {
		p, err := b.Placement(ctx, cluster.ID(id))
		if remote.StatusOf(err) == 404 && at == "" {
			continue
		}
		if err != nil || p.ManagementCluster != at {
			t.Errorf("the model has a cluster on %q, its placement is %+v, %v", at, p, err)
		}
	}
}
