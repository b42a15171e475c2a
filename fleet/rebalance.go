package fleet

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

// evenWithin is the difference in use, in millionths, below which no cluster moves from one management cluster to
// another. A move costs a cluster some seconds without its API, so a small difference is not worth one.
const evenWithin = millionths / 10

// use returns the largest reserved share of the resources that the capacity names, in millionths. It exceeds millionths
// when the capacity is smaller than what is reserved.
func use(reserved, capacity Amounts) (most int64) {
	for name, n := range capacity {
		most = max(most, share(min(reserved[name], maxAmount), max(n, 1)))
	}
	return most
}

// movable is a control plane that may move.
type movable struct {
	cluster cluster.ID
	on      cluster.ManagementClusterID
	demand  Demand
	stays   string // why it cannot move now, "" when nothing is known against it
}

// rebalanceHost is a management cluster that takes part in a rebalancing.
type rebalanceHost struct {
	ManagementCluster         // its Reserved is what is not free now
	settled           Amounts // what is reserved once all moves have ended, those of the plan included
	planes            map[string][]movable
}

// use returns the use of the host after all moves, with the amounts more reserved besides; times -1 subtracts them.
func (h *rebalanceHost) use(more Amounts, times int64) int64 {
	return use(plus(h.settled, more, times), h.Capacity)
}

// rebalancing is the state of a plan that evens out the use of management clusters. It does no I/O.
type rebalancing struct {
	hosts []*rebalanceHost // by name
}

// newRebalancing returns the state before the first move. Only management clusters that are Ready and have a capacity
// take part. settles has, for each management cluster, how its reservations will change by the moves under way; planes
// are the control planes without such a move.
func newRebalancing(fleet []ManagementCluster, settles map[cluster.ManagementClusterID]Amounts,
	planes []movable) *rebalancing {
	r := &rebalancing{}
	byID := map[cluster.ManagementClusterID]*rebalanceHost{}
	for _, m := range fleet {
		if m.State != api.Ready || m.Unusable != "" || len(m.Capacity) == 0 {
			continue
		}
		m.Reserved = maps.Clone(m.Reserved) // addInPlace changes it
		h := &rebalanceHost{ManagementCluster: m, settled: plus(m.Reserved, settles[m.ID], 1), planes: map[string][]movable{}}
		r.hosts, byID[m.ID] = append(r.hosts, h), h
	}
	slices.SortFunc(r.hosts, func(a, b *rebalanceHost) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range planes {
		if h := byID[p.on]; h != nil {
			h.add(p)
		}
	}
	for _, h := range r.hosts {
		for _, equal := range h.planes {
			slices.SortFunc(equal, func(a, b movable) int { return cmp.Compare(a.cluster, b.cluster) })
		}
	}
	return r
}

// keyOf returns a text that is equal for equal demands.
func keyOf(d Demand) string {
	text, _ := json.Marshal(d) // strings and numbers only
	return string(text)
}

// add adds a plane to those of the host that may move.
func (h *rebalanceHost) add(p movable) {
	key := keyOf(p.demand)
	h.planes[key] = append(h.planes[key], p)
}

// plannedMove is a move of a plan.
type plannedMove struct {
	movable
	from, to *rebalanceHost
}

// next returns the next move of the plan; false when the region is even, or nothing that would make it more even can
// move. It changes nothing. The source is the management cluster with the largest use that has such a plane. Of its
// planes next chooses the one that makes the larger use of both sides the smallest; of equal ones the first by id.
//
// The use of both sides after the move is smaller than that of the source before it, and the target's by evenWithin at
// least. So the sorted list of all uses decreases with each move, and a plan ends.
func (r *rebalancing) next() (best plannedMove, found bool) {
	sources := slices.Clone(r.hosts)
	slices.SortStableFunc(sources, func(a, b *rebalanceHost) int { return cmp.Compare(b.use(nil, 1), a.use(nil, 1)) })
	for _, from := range sources {
		before, least := from.use(nil, 1), int64(0)
		if len(from.planes) == 0 || !r.hasEmptier(before) {
			continue
		}
		for _, equal := range from.planes {
			p := equal[0]
			sourceAfter := from.use(p.demand.Amounts, -1)
			to := r.target(p, from)
			if to == nil || sourceAfter >= before {
				continue
			}
			targetAfter := to.use(p.demand.Amounts, 1)
			if targetAfter+evenWithin > before {
				continue
			}
			worse := max(sourceAfter, targetAfter)
			if !found || worse < least || worse == least && p.cluster < best.cluster {
				best, least, found = plannedMove{p, from, to}, worse, true
			}
		}
		if found {
			return best, true
		}
	}
	return best, false
}

// hasEmptier reports whether the use of a management cluster is smaller than that of a source by evenWithin.
func (r *rebalancing) hasEmptier(source int64) bool {
	return slices.ContainsFunc(r.hosts, func(h *rebalanceHost) bool { return h.use(nil, 1)+evenWithin <= source })
}

// target returns the management cluster that fits a plane and has the smallest use with it, of equal ones the first by
// name; nil when none fits.
func (r *rebalancing) target(p movable, from *rebalanceHost) (to *rebalanceHost) {
	least := int64(0)
	for _, h := range r.hosts {
		if h == from || !h.fits(p.demand) {
			continue
		}
		if with := h.use(p.demand.Amounts, 1); to == nil || with < least {
			to, least = h, with
		}
	}
	return to
}

// drop removes the plane of a move from the planes that later moves of the plan choose from.
func (r *rebalancing) drop(m plannedMove) {
	key := keyOf(m.demand)
	remaining := slices.DeleteFunc(m.from.planes[key], func(p movable) bool { return p.cluster == m.cluster })
	if m.from.planes[key] = remaining; len(remaining) == 0 {
		delete(m.from.planes, key)
	}
}

// replaceDemand replaces the demand of a move's plane. The customer has changed the demand since the plane was placed.
func (r *rebalancing) replaceDemand(m plannedMove, d Demand) {
	r.drop(m)
	p := m.movable
	p.demand = d
	m.from.add(p)
	slices.SortFunc(m.from.planes[keyOf(d)], func(a, b movable) int { return cmp.Compare(a.cluster, b.cluster) })
}

// apply adds a move to the plan. The room on the source is not free before the plane has arrived, so no plane of this
// plan gets it.
func (r *rebalancing) apply(m plannedMove) {
	r.drop(m)
	m.to.addInPlace(m.demand.Amounts)
	m.to.settled = plus(m.to.settled, m.demand.Amounts, 1)
	m.from.settled = plus(m.from.settled, m.demand.Amounts, -1)
}
