package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// inventory is a copy of the management clusters and placements in memory, which follow keeps up to date from the feed.
// Decisions choose a management cluster from it, and planRequests finds the waiting clusters that may have room. It
// lags behind the database, so a transaction checks each choice. Its methods take the time from their caller, who
// holds the lock of shared.
type inventory struct {
	mcs           map[cluster.ManagementClusterID]mcEntry // by id
	sums          map[cluster.ManagementClusterID]sum     // reservations of entries
	inProgress    map[cluster.ManagementClusterID]sum     // reservations of this process's transactions in progress
	entries       map[string]placementEntry               // of placements, by their documents' ids
	waiting       int
	sortedWaiting []entryWithID // waiting placements, the oldest first; nil: to be sorted
	requests      map[string]workRequest
	forwarding    map[string]time.Time                 // placements, by id, whose source forwards, and since when
	growing       map[string]bool                      // placements, by id, that had no room for a larger size
	recovering    map[string]cluster.ID                // clusters whose recovery runs, by their placements' ids
	recoveredFrom map[cluster.ManagementClusterID]int  // recoveries that are Ending, by their lost source
	lost          map[cluster.ManagementClusterID]bool // management clusters whose agent is reported as lost
	// placements, by id, for which lostChanges has returned the loss of their management cluster, and not its end
	reportedLost map[string]bool
	lostChanged  bool // the next lostChanges has to compare lost with reportedLost
}

type mcEntry struct {
	decodedMC
	removed       bool
	reportMovedAt time.Time // when the report on the agent last changed, by the clock of this process
}

// placementEntry has the members of a placement that decisions read.
type placementEntry struct {
	version    int64
	removed    bool
	cluster    cluster.ID
	mc         cluster.ManagementClusterID // id; "" while it waits
	reservedOn cluster.ManagementClusterID // on which a move reserves the amounts, too; "" for none
	phase      api.MovePhase               // of a move that is not over; "" for none
	recovered  cluster.ManagementClusterID // lost source of a recovery that is Ending; "" for none
	orphanedAt time.Time                   // when fleet found that the cluster does not exist; zero: it exists
	demand     Demand
	growth     Amounts // that a wanted size needs besides; nil: none is wanted
	demandKey  string  // equal for placements with equal demands
	created    time.Time
}

type entryWithID struct {
	id string // of the placement's document
	placementEntry
}

func newInventory() *inventory {
	return &inventory{
		mcs:           map[cluster.ManagementClusterID]mcEntry{},
		sums:          map[cluster.ManagementClusterID]sum{},
		inProgress:    map[cluster.ManagementClusterID]sum{},
		entries:       map[string]placementEntry{},
		requests:      map[string]workRequest{},
		forwarding:    map[string]time.Time{},
		growing:       map[string]bool{},
		recovering:    map[string]cluster.ID{},
		recoveredFrom: map[cluster.ManagementClusterID]int{},
		lost:          map[cluster.ManagementClusterID]bool{},
		reportedLost:  map[string]bool{},
	}
}

// apply records a document or its tombstone, and returns whether a waiting cluster may have room now. It ignores
// documents of older versions, of other kinds, and a tenant's own management clusters, which host no planes.
func (inv *inventory) apply(d store.Document, now time.Time) (mayHaveRoom bool, err error) {
	switch d.Kind {
	case kindMC:
		return inv.applyManagementCluster(d, now), nil
	case KindPlacement:
		return inv.applyPlacement(d)
	}
	return false, nil
}

// applyManagementCluster is apply for a management cluster.
func (inv *inventory) applyManagementCluster(d store.Document, now time.Time) (mayHaveRoom bool) {
	if d.Scope != "" {
		return false
	}
	id := cluster.ManagementClusterID(d.ID)
	have, known := inv.mcs[id]
	if known && have.doc.Version > d.Version {
		return false
	}
	if !known || !have.doc.SameState(d) {
		fresh := mcEntry{decodedMC: decodeMC(d), removed: d.Removed, reportMovedAt: now}
		if known && fresh.reportTime().Equal(have.reportTime()) {
			fresh.reportMovedAt = have.reportMovedAt
		}
		inv.mcs[id] = fresh
	}
	inv.updateLost(id)
	return !d.Removed && (!known || have.doc.Version != d.Version)
}

// applyPlacement is apply for a placement.
func (inv *inventory) applyPlacement(d store.Document) (mayHaveRoom bool, err error) {
	have, known := inv.entries[d.ID]
	if known && have.version >= d.Version {
		return false, nil
	}
	p, err := reservationOf(d)
	if err != nil {
		return false, err
	}
	e, err := newPlacementEntry(d, p)
	if err != nil {
		return false, err
	}
	frees := known && (have.reservedOn != e.reservedOn || have.mc == e.mc && e.mc != "" &&
		!reflect.DeepEqual(have.demand.Amounts, e.demand.Amounts))
	inv.indexPlacement(d.ID, p, e)
	inv.addToSum(have, -1)
	inv.addToSum(e, 1)
	inv.countRecovered(have, -1)
	inv.countRecovered(e, 1)
	if !e.isWaiting() && e.growth == nil {
		delete(inv.requests, d.ID)
	}
	if known && have.isWaiting() {
		inv.waiting--
	}
	if e.isWaiting() {
		inv.waiting++
	}
	inv.sortedWaiting = nil
	inv.entries[d.ID] = e
	inv.lostChanged = inv.lostChanged || inv.lost[e.mc]
	// Fleet may have decided that a placement waits before it had seen room that the feed has reported
	// since.
	return e.isWaiting() || e.removed || frees || e.growth != nil, nil
}

// newPlacementEntry returns the entry of a placement's document.
func newPlacementEntry(d store.Document, p reservation) (placementEntry, error) {
	e := placementEntry{version: d.Version, removed: d.Removed, cluster: p.ClusterID, mc: p.ManagementClusterID,
		demand: p.Demand, created: d.CreatedAt}
	if p.OrphanedTime != nil {
		e.orphanedAt = *p.OrphanedTime
	}
	if p.Move != nil && !e.removed {
		if e.reservedOn = p.Move.ReservedOn; !p.Move.isOver() {
			e.phase = p.Move.Phase
		}
		if p.Move.Phase == api.Ending && p.Move.IsRecovery {
			e.recovered = p.Move.FromID
		}
	}
	if p.WantedSize != "" && !e.removed && e.orphanedAt.IsZero() {
		e.growth = growth(p.Demand.Amounts, p.Size, p.WantedSize)
	}
	if e.isWaiting() {
		demand, err := json.Marshal(p.Demand)
		if err != nil {
			return e, fmt.Errorf("reading %s: %w", d.ID, err)
		}
		e.demandKey = string(demand)
	}
	return e, nil
}

// indexPlacement records whether a placement forwards, recovers or grows. id is its document's.
func (inv *inventory) indexPlacement(id string, p reservation, e placementEntry) {
	if delete(inv.forwarding, id); p.Move != nil && !e.removed && p.Move.Phase == api.Forwarding {
		inv.forwarding[id] = p.Move.ChangedTime
	}
	if delete(inv.recovering, id); e.phase == api.Recovering && e.orphanedAt.IsZero() {
		inv.recovering[id] = e.cluster
	}
	if delete(inv.growing, id); p.WantedSize != "" && !e.removed && e.orphanedAt.IsZero() {
		inv.growing[id] = true
	}
}

// addToSum adds a placement's reservations, multiplied by times, to the sums of its management clusters. A waiting or
// removed placement has none, and one that moves may have two.
func (inv *inventory) addToSum(e placementEntry, times int) {
	for _, mc := range []cluster.ManagementClusterID{e.mc, e.reservedOn} {
		if e.removed || mc == "" {
			continue
		}
		s := inv.sums[mc]
		s = sum{s.placements + times, plus(s.reserved, e.demand.Amounts, int64(times))}
		if inv.sums[mc] = s; s.placements == 0 && len(s.reserved) == 0 {
			delete(inv.sums, mc)
		}
	}
}

// countRecovered adds times to the number of clusters that were recovered from the placement's lost source.
func (inv *inventory) countRecovered(e placementEntry, times int) {
	if e.recovered == "" {
		return
	}
	if inv.recoveredFrom[e.recovered] += times; inv.recoveredFrom[e.recovered] == 0 {
		delete(inv.recoveredFrom, e.recovered)
	}
}

// reserveInProgress reserves amounts in memory while a transaction is in progress, so that concurrent ones choose
// other management clusters. times is 1 at the beginning of the transaction and -1 at its end.
func (inv *inventory) reserveInProgress(mc cluster.ManagementClusterID, amounts Amounts, times int) {
	s := inv.inProgress[mc]
	s = sum{s.placements + times, plus(s.reserved, amounts, int64(times))}
	if inv.inProgress[mc] = s; s.placements == 0 {
		delete(inv.inProgress, mc)
	}
}

func (e placementEntry) isWaiting() bool { return !e.removed && e.mc == "" }

// dropTombstones forgets removed documents. Until then their versions protect the inventory from older states that a
// concurrent list may apply.
func (inv *inventory) dropTombstones() {
	for id, e := range inv.entries {
		if e.removed {
			delete(inv.entries, id)
		}
	}
	for id, m := range inv.mcs {
		if m.removed {
			delete(inv.mcs, id)
		}
	}
}

// hosts returns the management clusters with their reservations, without order. The caller must not change the
// amounts, which belong to the inventory.
func (inv *inventory) hosts(now time.Time) []ManagementCluster {
	hosts := make([]ManagementCluster, 0, len(inv.mcs))
	for id, m := range inv.mcs {
		if m.removed {
			continue
		}
		host := m.withStateAt(now, m.reportMovedAt)
		s := inv.sums[id]
		host.Reserved, host.Placements = s.reserved, s.placements
		if held, ok := inv.inProgress[id]; ok {
			host.Reserved, host.Placements = plus(s.reserved, held.reserved, 1), s.placements+held.placements
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// sortedHosts returns hosts sorted by name, with copies of the amounts.
func (inv *inventory) sortedHosts(now time.Time) []ManagementCluster {
	fleet := inv.hosts(now)
	for i := range fleet {
		fleet[i].Reserved = maps.Clone(fleet[i].Reserved)
	}
	slices.SortFunc(fleet, func(a, b ManagementCluster) int { return cmp.Compare(a.Name, b.Name) })
	return fleet
}

// hasStaleReport reports whether a management cluster counts as lost only because its last report, in which the agent
// is connected, is too old. The feed has no change for the end of this state.
func (inv *inventory) hasStaleReport(now time.Time) bool {
	for _, m := range inv.mcs {
		if !m.removed && m.reportsConnected() && now.Sub(m.reportMovedAt) > maxReportAge {
			return true
		}
	}
	return false
}

// orphaned returns the Orphaned placements, the oldest first.
func (inv *inventory) orphaned(now time.Time) (all []orphanedPlacement) {
	for _, e := range inv.entries {
		if e.removed || e.orphanedAt.IsZero() {
			continue
		}
		o := orphanedPlacement{cluster: e.cluster, mc: inv.mcs[e.mc].m.Name, since: e.orphanedAt,
			connected: inv.isConnected(e.mc, now)}
		if e.reservedOn != "" {
			o.reservedOn, o.connected = inv.mcs[e.reservedOn].m.Name, o.connected && inv.isConnected(e.reservedOn, now)
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b orphanedPlacement) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.cluster, b.cluster))
	})
	return all
}

// placedOn returns the clusters whose planes run on a management cluster, in the order of their ids; false when no
// management cluster has the name.
func (inv *inventory) placedOn(name cluster.ManagementCluster) (ids []cluster.ID, found bool) {
	var mc cluster.ManagementClusterID
	for id, m := range inv.mcs {
		if !m.removed && m.m.Name == name {
			mc, found = id, true
		}
	}
	if !found {
		return nil, false
	}
	for _, e := range inv.entries {
		if e.mc == mc && !e.removed && e.orphanedAt.IsZero() {
			ids = append(ids, e.cluster)
		}
	}
	slices.Sort(ids)
	return ids, true
}

// isConnected reports whether the agent of a management cluster is connected at now.
func (inv *inventory) isConnected(mc cluster.ManagementClusterID, now time.Time) bool {
	m, known := inv.mcs[mc]
	if !known || m.removed {
		return false
	}
	return m.withStateAt(now, m.reportMovedAt).isConnected()
}

// addInPlace reserves amounts for one more placement, and changes the map of the amounts. The caller owns the map.
func (m *ManagementCluster) addInPlace(amounts Amounts) {
	if m.Reserved == nil {
		m.Reserved = Amounts{}
	}
	for name, n := range amounts {
		m.Reserved[name] += n
	}
	m.Placements++
}
