package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
)

// workRequest is fleet's last request that the adapters run for a cluster: one that waits for a management cluster,
// or one whose control plane waits for room for its larger size. It has the time, the version of the cluster's
// placement at that time, and the number of requests since the placement has that version.
type workRequest struct {
	at      time.Time
	version int64
	count   int
}

// hasEnded reports whether the request has changed the placement, or has expired. Some requests change nothing: the
// adapter may decide as before, or be disconnected. So each request expires, after twice the time of the one before.
func (r workRequest) hasEnded(version int64, now time.Time) bool {
	return r.version != version || now.Sub(r.at) >= min(firstExpiry<<(r.count-1), maxExpiry)
}

const (
	// maxRequests bounds the new requests and those of the last firstExpiry. Further requests follow in later plans.
	maxRequests = 100
	// A first request expires after firstExpiry, and no request later than after maxExpiry.
	firstExpiry = 2 * time.Second
	maxExpiry   = 64 * time.Second
)

// waitingOldestFirst returns the waiting placements, the oldest first.
func (inv *inventory) waitingOldestFirst() []entryWithID {
	if inv.sortedWaiting == nil {
		inv.sortedWaiting = make([]entryWithID, 0, inv.waiting)
		for id, e := range inv.entries {
			if e.isWaiting() {
				inv.sortedWaiting = append(inv.sortedWaiting, entryWithID{id, e})
			}
		}
		slices.SortFunc(inv.sortedWaiting, func(a, b entryWithID) int {
			return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id))
		})
	}
	return inv.sortedWaiting
}

// planRequests returns the placements for which to request work: waiting ones, the oldest first, and then those that
// need room for a larger size. It reserves room for each of them in a copy of the inventory, in this order, and
// returns those that find room and whose last request has ended. The result and the requests of the last firstExpiry
// are at most maxRequests together: an older request without an effect does not keep other clusters waiting.
func (inv *inventory) planRequests(now time.Time) (plan []entryWithID) {
	if inv.waiting == 0 && len(inv.growing) == 0 {
		return nil
	}
	fleet := inv.sortedHosts(now)
	if !slices.ContainsFunc(fleet, func(m ManagementCluster) bool { return m.State == api.Ready && m.Unusable == "" }) {
		return nil
	}
	recentRequests := 0
	// If a demand finds no room, an equal demand after it finds none either.
	full := map[string]bool{}
	for _, w := range inv.waitingOldestFirst() {
		if recentRequests+len(plan) >= maxRequests {
			break
		}
		if full[w.demandKey] {
			continue
		}
		i := choose(w.demand, fleet)
		if i < 0 {
			full[w.demandKey] = true
			continue
		}
		fleet[i].addInPlace(w.demand.Amounts)
		if last, ok := inv.requests[w.id]; ok && !last.hasEnded(w.version, now) {
			if now.Sub(last.at) < firstExpiry {
				recentRequests++
			}
			continue
		}
		plan = append(plan, w)
	}
	return append(plan, inv.planGrowth(fleet, maxRequests-recentRequests-len(plan), now)...)
}

// planGrowth returns the placements, at most limit, whose wanted size has room in fleet and whose last request has
// ended. The caller has reserved the room of waiting placements in fleet: a cluster that does not run yet comes
// first.
func (inv *inventory) planGrowth(fleet []ManagementCluster, limit int, now time.Time) (plan []entryWithID) {
	for _, id := range slices.Sorted(maps.Keys(inv.growing)) {
		if len(plan) >= limit {
			break
		}
		e := inv.entries[id]
		i := slices.IndexFunc(fleet, func(m ManagementCluster) bool { return m.ID == e.mc })
		if i < 0 || e.reservedOn != "" || !fleet[i].hasFree(e.growth) {
			continue
		}
		fleet[i].Reserved = plus(fleet[i].Reserved, e.growth, 1)
		if last, ok := inv.requests[id]; !ok || last.hasEnded(e.version, now) {
			plan = append(plan, entryWithID{id, e})
		}
	}
	return plan
}

// maxCounted bounds the count of a workRequest, which hasEnded uses as a power of two.
const maxCounted = 10

// recordRequest records that work was requested for a placement.
func (inv *inventory) recordRequest(w entryWithID, now time.Time) {
	last := inv.requests[w.id]
	if last.version != w.version {
		last.count = 0
	}
	inv.requests[w.id] = workRequest{now, w.version, min(last.count+1, maxCounted)}
}
