package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

// moves returns at most most moves of a rebalancing, as "CLUSTER FROM>TO".
func (r *rebalancing) moves(most int) (moves []string) {
	for len(moves) < most {
		m, found := r.next()
		if !found {
			break
		}
		r.apply(m)
		moves = append(moves, fmt.Sprintf("%s %s>%s", m.cluster, m.from.Name, m.to.Name))
	}
	return moves
}

func TestTheMovesOfARebalancing(t *testing.T) {
	host := func(name string, planes int64, change ...func(*ManagementCluster)) ManagementCluster {
		m := ManagementCluster{ID: cluster.ManagementClusterID(name), Name: cluster.ManagementCluster(name), State: api.Ready,
			Capacity: Amounts{"planes": planes}}
		for _, c := range change {
			c(&m)
		}
		return m
	}
	in := func(state api.ManagementClusterState) func(*ManagementCluster) {
		return func(m *ManagementCluster) { m.State = state }
	}
	unlimited := func(m *ManagementCluster) { m.Capacity = nil }
	unusable := func(m *ManagementCluster) { m.Unusable = "its spec cannot be read" }
	north := func(m *ManagementCluster) { m.Labels = map[string]string{"zone": "north"} }
	version := func(m *ManagementCluster) { m.Versions = []string{"2"} }
	type placed struct {
		on     string
		n      int
		demand Demand
	}
	one := Demand{Amounts: Amounts{"planes": 1}}
	with := func(change func(*Demand)) Demand {
		d := one
		change(&d)
		return d
	}
	for _, c := range []struct {
		what   string
		hosts  []ManagementCluster
		planes []placed
		want   string
	}{
		{"nothing is placed", []ManagementCluster{host("a", 4), host("b", 4)}, nil, ""},
		{"an empty one gets half", []ManagementCluster{host("a", 8), host("b", 8)}, []placed{{"a", 6, one}},
			"c0 a>b, c1 a>b, c2 a>b"},
		{"shares count, not numbers", []ManagementCluster{host("a", 4), host("b", 12)}, []placed{{"a", 4, one}},
			"c0 a>b, c1 a>b, c2 a>b"},
		{"the emptiest of three", []ManagementCluster{host("a", 10), host("b", 10), host("c", 10)},
			[]placed{{"a", 8, one}, {"b", 4, one}}, "c0 a>c, c1 a>c, c2 a>c, c3 a>c"},
		{"the same after the move", []ManagementCluster{host("a", 4), host("b", 4)},
			[]placed{{"a", 2, one}, {"b", 1, one}}, ""},
		{"a small difference", []ManagementCluster{host("a", 100), host("b", 100)},
			[]placed{{"a", 55, one}, {"b", 45, one}}, ""},
		{"a difference above a tenth", []ManagementCluster{host("a", 100), host("b", 100)},
			[]placed{{"a", 56, one}, {"b", 45, one}}, "c0 a>b"},
		{"a cordoned target", []ManagementCluster{host("a", 4), host("b", 4, in(api.Cordoned))}, []placed{{"a", 4, one}}, ""},
		{"a drained target", []ManagementCluster{host("a", 4), host("b", 4, in(api.Draining))}, []placed{{"a", 4, one}}, ""},
		{"a lost target", []ManagementCluster{host("a", 4), host("b", 4, in(api.Lost))}, []placed{{"a", 4, one}}, ""},
		{"a target that was never connected", []ManagementCluster{host("a", 4), host("b", 4, in(api.Unheard))},
			[]placed{{"a", 4, one}}, ""},
		{"a target that cannot be read", []ManagementCluster{host("a", 4), host("b", 4, unusable)},
			[]placed{{"a", 4, one}}, ""},
		{"a target of unknown room", []ManagementCluster{host("a", 4), host("b", 4, unlimited)}, []placed{{"a", 4, one}}, ""},
		{"a lost source", []ManagementCluster{host("a", 4, in(api.Lost)), host("b", 4)}, []placed{{"a", 4, one}}, ""},
		{"a drained source", []ManagementCluster{host("a", 4, in(api.Draining)), host("b", 4)}, []placed{{"a", 4, one}}, ""},
		{"more reserved than there is", []ManagementCluster{host("a", 2), host("b", 2)}, []placed{{"a", 4, one}},
			"c0 a>b, c1 a>b"},
		{"a target that the plan fills", []ManagementCluster{host("a", 2), host("b", 2)}, []placed{{"a", 9, one}},
			"c0 a>b, c1 a>b"},
		{"a capacity that was taken away", []ManagementCluster{host("a", 0), host("b", 9)}, []placed{{"a", 2, one}},
			"c0 a>b, c1 a>b"},
		{"the customer's management cluster", []ManagementCluster{host("a", 4), host("b", 4)},
			[]placed{{"a", 4, with(func(d *Demand) { d.Named = "a" })}}, ""},
		{"the customer's labels", []ManagementCluster{host("a", 4, north), host("b", 4), host("c", 4, north)},
			[]placed{{"a", 2, with(func(d *Demand) { d.Selector = map[string]string{"zone": "north"} })}}, "c0 a>c"},
		{"a version that the target cannot run", []ManagementCluster{host("a", 4), host("b", 4, version)},
			[]placed{{"a", 2, with(func(d *Demand) { d.Version = "1" })}, {"a", 1, with(func(d *Demand) { d.Version = "2" })}},
			"c2 a>b"},
		{"a large plane that does not fit", []ManagementCluster{host("a", 10), host("b", 5)},
			[]placed{{"a", 1, Demand{Amounts: Amounts{"planes": 6}}}, {"a", 3, one}}, "c1 a>b, c2 a>b, c3 a>b"},
		{"the large plane of two sizes", []ManagementCluster{host("a", 10), host("b", 10)},
			[]placed{{"a", 3, one}, {"a", 1, Demand{Amounts: Amounts{"planes": 3}}}}, "c3 a>b"},
		{"a plane that takes nothing of what is scarce", []ManagementCluster{host("a", 4), host("b", 4)},
			[]placed{{"a", 4, with(func(d *Demand) { d.Named = "a" })}, {"a", 2, Demand{Amounts: Amounts{"eggs": 1}}}}, ""},
	} {
		var planes []movable
		for _, p := range c.planes {
			i := slices.IndexFunc(c.hosts, func(m ManagementCluster) bool { return string(m.Name) == p.on })
			for range p.n {
				id := cluster.ID(fmt.Sprint("c", len(planes)))
				planes = append(planes, movable{cluster: id, on: c.hosts[i].ID, demand: p.demand})
			}
			c.hosts[i].add(Amounts(plus(nil, p.demand.Amounts, int64(p.n))), 1)
		}
		if got := strings.Join(newRebalancing(c.hosts, nil, planes).moves(100), ", "); got != c.want {
			t.Errorf("%s: the moves are %q, want %q", c.what, got, c.want)
		}
	}
}

// A move under way counts as if it had ended, and its room on the source is not free before.
func TestARebalancingCountsTheMovesUnderWay(t *testing.T) {
	one := Amounts{"planes": 1}
	hosts := []ManagementCluster{
		{ID: "a", Name: "a", State: api.Ready, Capacity: Amounts{"planes": 4}, Reserved: Amounts{"planes": 4}},
		{ID: "b", Name: "b", State: api.Ready, Capacity: Amounts{"planes": 4}, Reserved: Amounts{"planes": 2}},
	}
	var planes []movable
	for i := range 2 {
		planes = append(planes, movable{cluster: cluster.ID(fmt.Sprint("a", i)), on: "a", demand: Demand{Amounts: one}})
	}
	settles := map[cluster.ManagementClusterID]Amounts{"a": {"planes": -2}}
	if moves := newRebalancing(hosts, settles, planes).moves(9); len(moves) != 0 {
		t.Errorf("both have two planes when the moves have ended; moves %v", moves)
	}
	hosts[0].Capacity, hosts[1].Capacity = Amounts{"planes": 4}, Amounts{"planes": 2}
	settles = map[cluster.ManagementClusterID]Amounts{"b": {"planes": -2}}
	if moves := newRebalancing(hosts, settles, planes).moves(9); len(moves) != 0 {
		t.Errorf("b has no room until its planes have left; moves %v", moves)
	}
}

// useOf returns the uses of all hosts of a rebalancing, the largest first.
func (r *rebalancing) useOf() (uses []int64) {
	for _, h := range r.hosts {
		uses = append(uses, h.use(nil, 1))
	}
	slices.SortFunc(uses, func(a, b int64) int { return cmp.Compare(b, a) })
	return uses
}

// A rebalancing of any fleet: each move goes from and to a Ready management cluster with a capacity, and fits there
// also while none of the planes has left; the sorted uses decrease; no plane moves twice in one plan; plans that are
// carried out one after another come to one without a move.
func TestARebalancingEndsAndEachMoveMakesTheRegionMoreEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := someFleet().Draw(t, "fleet")
		for i := range fleet { // reservations are those of the planes
			fleet[i].ID, fleet[i].Reserved = cluster.ManagementClusterID(fleet[i].Name), Amounts{}
			fleet[i].Capacity = plus(fleet[i].Capacity, fleet[i].Capacity, rapid.Int64Range(0, 4).Draw(t, "times"))
		}
		var planes []movable
		for i := range rapid.IntRange(0, 30).Draw(t, "planes") {
			if len(fleet) == 0 {
				break
			}
			on, d := rapid.IntRange(0, len(fleet)-1).Draw(t, "on"), someDemand().Draw(t, "demand")
			planes = append(planes, movable{cluster: cluster.ID(fmt.Sprintf("c%02d", i)), on: fleet[on].ID, demand: d})
			fleet[on].Reserved = plus(fleet[on].Reserved, d.Amounts, 1)
		}
		order := rapid.Permutation(fleet).Draw(t, "order")
		a, b := newRebalancing(fleet, nil, planes).moves(1000), newRebalancing(order, nil, planes).moves(1000)
		if !slices.Equal(a, b) {
			t.Fatalf("the plan depends on the order: %v, %v", a, b)
		}
		r, moved := newRebalancing(fleet, nil, planes), map[cluster.ID]bool{}
		byID := map[cluster.ManagementClusterID]*ManagementCluster{}
		for i := range fleet {
			fleet[i].Reserved = maps.Clone(fleet[i].Reserved)
			byID[fleet[i].ID] = &fleet[i]
		}
		after := slices.Clone(planes)
		for len(moved) <= len(planes) {
			before := r.useOf()
			m, found := r.next()
			if !found {
				break
			}
			from, to := byID[m.from.ID], byID[m.to.ID]
			if from == to || from.State != api.Ready || len(from.Capacity) == 0 || len(to.Capacity) == 0 || moved[m.cluster] {
				t.Fatalf("%+v moves from %+v to %+v", m.movable, *from, *to)
			}
			if !to.fits(m.demand) {
				t.Fatalf("%+v does not fit on %+v", m.movable, *to)
			}
			to.Reserved = plus(to.Reserved, m.demand.Amounts, 1) // the source keeps its reservation
			r.apply(m)
			if uses := r.useOf(); slices.Compare(uses, before) >= 0 {
				t.Fatalf("the uses were %v, and are %v", before, uses)
			}
			moved[m.cluster] = true
			i := slices.IndexFunc(after, func(p movable) bool { return p.cluster == m.cluster })
			after[i].on = to.ID
		}
		for i := range fleet {
			fleet[i].Reserved = Amounts{}
		}
		for _, p := range after {
			byID[p.on].Reserved = plus(byID[p.on].Reserved, p.demand.Amounts, 1)
		}
		// Room that is free only now may make further moves possible.
		var again []string
		for range 100 {
			r := newRebalancing(fleet, nil, after)
			if again = r.moves(1); len(again) == 0 {
				return
			}
			var name, way string
			_, _ = fmt.Sscan(again[0], &name, &way)
			from, to, _ := strings.Cut(way, ">")
			i := slices.IndexFunc(after, func(p movable) bool { return string(p.cluster) == name })
			byID[cluster.ManagementClusterID(from)].Reserved = plus(byID[after[i].on].Reserved, after[i].demand.Amounts, -1)
			after[i].on = cluster.ManagementClusterID(to)
			byID[after[i].on].Reserved = plus(byID[after[i].on].Reserved, after[i].demand.Amounts, 1)
		}
		t.Fatalf("a rebalancing that is repeated does not end: %v", again)
	})
}
