package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
)

// workRequest is the last request for work on a waiting cluster: its time, the version of the cluster's placement at
// that time, and the number of requests since the placement has that version.
type workRequest struct {
	at      time.Time
	version int64
	count   int
}

// hasEnded reports whether a request was answered or has expired. An answer equal to the last one creates no new
// version, and adapters may be disconnected, so requests expire, each after twice the time of the one before.
func (r workRequest) hasEnded(version int64, now time.Time) bool {
	return r.version != version || now.Sub(r.at) >= min(firstExpiry<<(r.count-1), maxExpiry)
}

const (
	// maxRequests bounds the requests in progress. Further ones follow when these are over.
	maxRequests = 100
	// firstExpiry is how long a first request counts as in progress.
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

// planRequests returns the waiting placements for which to request work, the oldest first. In order of age it gives
// each waiting placement room in a copy of the region; it returns those that find room and have no request in
// progress. The result and the requests in progress are at most maxRequests together.
func (inv *inventory) planRequests(now time.Time) (plan []entryWithID) {
	if inv.waiting == 0 && len(inv.growing) == 0 {
		return nil
	}
	fleet := inv.sortedHosts(now)
	if !slices.ContainsFunc(fleet, func(m ManagementCluster) bool { return m.State == api.Ready && m.Unusable == "" }) {
		return nil
	}
	pendingRequests := 0
	// If a demand finds no room, an equal demand after it finds none either.
	full := map[string]bool{}
	for _, w := range inv.waitingOldestFirst() {
		if pendingRequests+len(plan) >= maxRequests {
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
				pendingRequests++
			}
			continue
		}
		plan = append(plan, w)
	}
	return append(plan, inv.planGrowth(fleet, maxRequests-pendingRequests-len(plan), now)...)
}

// planGrowth returns at most most of the placements whose wanted size has room in fleet, after the waiting ones: a
// cluster that does not run yet comes first.
func (inv *inventory) planGrowth(fleet []ManagementCluster, most int, now time.Time) (plan []entryWithID) {
	for _, id := range slices.Sorted(maps.Keys(inv.growing)) {
		if len(plan) >= most {
			break
		}
		e := inv.entries[id]
		i := slices.IndexFunc(fleet, func(m ManagementCluster) bool { return m.ID == e.mc })
		if i < 0 || e.second != "" || !fleet[i].hasFree(e.growth) {
			continue
		}
		fleet[i].Reserved = plus(fleet[i].Reserved, e.growth, 1)
		if last, ok := inv.requests[id]; !ok || last.hasEnded(e.version, now) {
			plan = append(plan, entryWithID{id, e})
		}
	}
	return plan
}

// recordRequest records a request for work.
func (inv *inventory) recordRequest(w entryWithID, now time.Time) {
	a := inv.requests[w.id]
	if a.version != w.version {
		a.count = 0
	}
	inv.requests[w.id] = workRequest{now, w.version, min(a.count+1, 10)}
}
