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

// Anything in any order, against a model: what is placed never moves, whatever
// becomes of its management cluster; nothing is placed beyond a capacity, or
// where it may not be; and what is reserved is always what is placed.
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
		heard           bool
	}
	var fleet []*mc
	for i := range 3 {
		m := &mc{name: fmt.Sprintf("m%d", i), state: "Ready", planes: 2, heard: true}
		m.id = b.mc(m.name, `{"capacity":{"planes":2}}`, nil)
		fleet = append(fleet, m)
	}
	places := map[string]string{} // of clusters, "" for those that wait
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
			return m.heard && m.state == "Ready" && on(
				m.name) < m.planes
		})
		p := b.place(id)
		switch at := places[id]; {
		case at != "":
			if p.ManagementCluster != at {
				t.Fatalf("it moved from %s to %q", at, p.ManagementCluster)
			}
			return
		case (p.State == api.Placed) != room:
			t.Fatalf("it is %s; there is room: %v; %s", p.State, room, p.Reason)
		}
		places[id] = p.ManagementCluster
		if i := slices.IndexFunc(fleet, func(m *mc) bool { return m.name == p.ManagementCluster }); i >= 0 {
			if m := fleet[i]; !m.heard || m.state != "Ready" || on(m.name) > m.planes {
				t.Fatalf("it was placed on %+v, which has %d", *m, on(m.name))
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
			_, err := b.Delete(ctx, clustersOf, id, "")
			check("deleting", err)
			if random.IntN(2) == 0 {
				check("releasing", b.Release(ctx, cluster.ID(id)))
			} else { // fleet finds out
				check("ending", b.ForceDelete(ctx, clustersOf, id, "a test"))
				left := api.PlacementState("")
				if places[id] != "" {
					left = api.Orphaned // until its management cluster, or an operator, says that nothing is left
				}
				b.eventually("it is found", func() bool { return b.placementState(id) == left })
				check("freeing", b.Free(ctx, cluster.ID(id), "a test"))
			}
			delete(places, id)
			ids = slices.Delete(ids, i, i+1)
		case n < 8:
			m.heard = !m.heard
			b.heard(m.id, m.heard)
		case n < 9:
			m.state = []string{"Ready", "Cordoned", "Draining"}[random.IntN(3)]
			_, err := b.Merge(ctx, mcs, m.id, []byte(`{"spec":{"state":"`+m.state+`"}}`), "")
			check("declaring", err)
		default:
			m.planes = random.IntN(4)
			_, err := b.Merge(ctx, mcs, m.id, fmt.Appendf(nil, `{"spec":{"capacity":{"planes":%d}}}`, m.planes), "")
			check("growing", err)
		}
		if step%10 == 9 {
			usage, err := b.Usage(ctx)
			check("reading", err)
			for i, u := range usage {
				m := fleet[i]
				state := m.state
				if !m.heard {
					state = "Lost"
				}
				if n := int64(on(m.name)); u.Reserved["planes"] != n || u.Placements != int(n) ||
					u.Capacity["planes"] != int64(m.planes) || string(u.State) != state {
					t.Fatalf("%+v, and the model has %d on %+v", u, n, *m)
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
			t.Errorf("a cluster that is on %q is at %+v, %v", at, p, err)
		}
	}
}
