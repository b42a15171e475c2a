package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// board has the management clusters and placements in memory, from the feed. Decisions choose by it, and
// plan finds the waiting clusters for which there may be room. It lags behind the database, so a
// transaction checks each choice. The caller passes the time.
type board struct {
	mcs           map[cluster.ManagementClusterID]mcEntry // by id
	sums          map[cluster.ManagementClusterID]sum     // reservations of entries, by the management cluster's id
	held          map[cluster.ManagementClusterID]sum     // reservations of this process's transactions in progress
	entries       map[string]entry                        // of placements, by their documents' ids
	waiting       int
	order         []waiter // waiting placements, the oldest first; nil: to be sorted
	asked         map[string]ask
	lost          map[cluster.ManagementClusterID]bool // management clusters whose agents are reported as lost, by id
	reportedLost  map[string]bool                      // placements, by id, whose adapters were asked to report the loss
	lostMayDiffer bool                                 // lostChanges may find something
}

type mcEntry struct {
	reading
	removed bool
	moved   time.Time // when this process saw its agent's report move last, by its own clock
}

// entry has the members of a placement that decisions read.
type entry struct {
	version int64
	removed bool
	cluster cluster.ID
	mc      cluster.ManagementClusterID // id; "" while it waits
	orphan  time.Time                   // since when it has no cluster; zero: it has one
	demand  Demand
	class   string // equal for placements with equal demands
	created time.Time
}

type waiter struct {
	id string // of the placement's document
	entry
}

// ask records the last request for work on a waiting cluster: when, at which version of its placement, and
// how many requests that version has had.
type ask struct {
	at      time.Time
	version int64
	times   int
}

// settled reports whether a request was answered or has expired. An answer equal to the last one makes no
// version, and adapters may be away, so requests expire, each later than the one before.
func (a ask) settled(version int64, now time.Time) bool {
	return a.version != version || now.Sub(a.at) >= min(patience<<(a.times-1), maxPatience)
}

const (
	// maxAsked bounds the requests in progress: the next ones follow when these clusters have been placed or
	// still wait.
	maxAsked = 100
	// patience is how long a first request counts as in progress.
	patience    = 2 * time.Second
	maxPatience = 64 * time.Second
)

func newBoard() *board {
	return &board{mcs: map[cluster.ManagementClusterID]mcEntry{}, sums: map[cluster.ManagementClusterID]sum{},
		held:    map[cluster.ManagementClusterID]sum{},
		entries: map[string]entry{}, asked: map[string]ask{}, lost: map[cluster.ManagementClusterID]bool{},
		reportedLost: map[string]bool{}}
}

// apply records a document or its tombstone, and returns whether a waiting cluster may have room now.
func (b *board) apply(d store.Document, now time.Time) (news bool, err error) {
	switch d.Kind {
	case kindMC:
		if d.Scope != "" {
			return false, nil // a tenant's own, which hosts nothing
		}
		have, known := b.mcs[cluster.ManagementClusterID(d.ID)]
		if known && have.doc.Version > d.Version {
			return false, nil
		}
		if !known || !have.doc.SameState(d) {
			fresh := mcEntry{reading: read(d), removed: d.Removed, moved: now}
			if known && fresh.reportTime().Equal(have.reportTime()) {
				fresh.moved = have.moved
			}
			b.mcs[cluster.ManagementClusterID(d.ID)] = fresh
		}
		b.setLost(cluster.ManagementClusterID(d.ID), b.mcs[cluster.ManagementClusterID(d.ID)].reading.lost())
		return !d.Removed && (!known || have.doc.Version != d.Version), nil
	case KindPlacement:
		have, known := b.entries[d.ID]
		if known && have.version >= d.Version {
			return false, nil
		}
		p, err := reservationOf(d)
		if err != nil {
			return false, err
		}
		e := entry{version: d.Version, removed: d.Removed, cluster: p.ClusterID, mc: p.ManagementClusterID,
			demand: p.Demand, created: d.CreatedAt}
		if p.OrphanedTime != nil {
			e.orphan = *p.OrphanedTime
		}
		b.count(have, -1)
		b.count(e, 1)
		if e.waits() {
			class, err := json.Marshal(p.Demand)
			if err != nil {
				return false, fmt.Errorf("reading %s: %w", d.ID, err)
			}
			e.class = string(class)
		} else {
			delete(b.asked, d.ID)
		}
		b.waiting += count(e.waits()) - count(known && have.waits())
		b.order = nil
		b.entries[d.ID] = e
		b.lostMayDiffer = b.lostMayDiffer || b.lost[e.mc]
		// A waiting placement may have been decided before room became free that the feed has already
		// brought.
		return e.waits() || e.removed, nil
	}
	return false, nil
}

// count is 1 for a predicate that holds.
func count(holds bool) int {
	if holds {
		return 1
	}
	return 0
}

// count adds a placement's reservation, times over, to the sum of its management cluster.
func (b *board) count(e entry, times int) {
	if e.removed || e.mc == "" {
		return
	}
	s := b.sums[e.mc]
	s = sum{s.placements + times, plus(s.reserved, e.demand.Amounts, int64(times))}
	if b.sums[e.mc] = s; s.placements == 0 && len(s.reserved) == 0 {
		delete(b.sums, e.mc)
	}
}

// hold reserves amounts in memory while a transaction is in progress, so that concurrent ones choose other
// management clusters; times -1 ends it.
func (b *board) hold(mc cluster.ManagementClusterID, amounts Amounts, times int) {
	s := b.held[mc]
	s = sum{s.placements + times, plus(s.reserved, amounts, int64(times))}
	if b.held[mc] = s; s.placements == 0 {
		delete(b.held, mc)
	}
}

func (e entry) waits() bool { return !e.removed && e.mc == "" }

// forget drops tombstones, which only kept older states out.
func (b *board) forget() {
	for id, e := range b.entries {
		if e.removed {
			delete(b.entries, id)
		}
	}
	for id, m := range b.mcs {
		if m.removed {
			delete(b.mcs, id)
		}
	}
}

// hosts returns the management clusters with their reservations. The amounts belong to the board.
func (b *board) hosts(now time.Time) []ManagementCluster {
	hosts := make([]ManagementCluster, 0, len(b.mcs))
	for id, m := range b.mcs {
		if m.removed {
			continue
		}
		host := m.at(now, m.moved)
		s := b.sums[id]
		host.Reserved, host.Placements = s.reserved, s.placements
		if held, ok := b.held[id]; ok {
			host.Reserved, host.Placements = plus(s.reserved, held.reserved, 1), s.placements+held.placements
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// fleet returns hosts sorted by name, with copies of the amounts.
func (b *board) fleet(now time.Time) []ManagementCluster {
	fleet := b.hosts(now)
	for i := range fleet {
		fleet[i].Reserved = maps.Clone(fleet[i].Reserved)
	}
	slices.SortFunc(fleet, func(a, b ManagementCluster) int { return cmp.Compare(a.Name, b.Name) })
	return fleet
}

// hasStaleReport reports whether a management cluster counts as lost only because its report stopped to
// move, which no feed entry shows.
func (b *board) hasStaleReport(now time.Time) bool {
	for _, m := range b.mcs {
		if !m.removed && m.available() && now.Sub(m.moved) > silence {
			return true
		}
	}
	return false
}

// orphaned returns the placements without a cluster, the oldest first.
func (b *board) orphaned(now time.Time) (all []orphanedPlacement) {
	for _, e := range b.entries {
		if e.removed || e.orphan.IsZero() {
			continue
		}
		m, known := b.mcs[e.mc]
		o := orphanedPlacement{cluster: e.cluster, mc: m.m.Name, since: e.orphan}
		if known && !m.removed {
			state := m.at(now, m.moved).State
			o.heard = state != api.Lost && state != api.Unheard
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b orphanedPlacement) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.cluster, b.cluster))
	})
	return all
}

// take reserves amounts for one more placement, in place. The caller owns the amounts.
func (m *ManagementCluster) take(amounts Amounts) {
	if m.Reserved == nil {
		m.Reserved = Amounts{}
	}
	for name, n := range amounts {
		m.Reserved[name] += n
	}
	m.Placements++
}

func (b *board) waitingInOrder() []waiter {
	if b.order == nil {
		b.order = make([]waiter, 0, b.waiting)
		for id, e := range b.entries {
			if e.waits() {
				b.order = append(b.order, waiter{id, e})
			}
		}
		slices.SortFunc(b.order, func(a, b waiter) int {
			return cmp.Or(a.created.Compare(b.created),
				cmp.Compare(a.id, b.id))
		})
	}
	return b.order
}

// plan returns the waiting placements for which to request work: the oldest for which there is room beside
// the older ones, at most maxAsked with those in progress.
func (b *board) plan(now time.Time) (asks []waiter) {
	if b.waiting == 0 {
		return nil
	}
	fleet := b.fleet(now)
	free := 0
	for i := range fleet {
		free += count(fleet[i].State == api.Ready && fleet[i].Broken == "")
	}
	if free == 0 {
		return nil
	}
	under := 0
	// A demand that found no room finds none after others have taken room.
	full := map[string]bool{}
	for _, w := range b.waitingInOrder() {
		if under+len(asks) >= maxAsked {
			break
		}
		if full[w.class] {
			continue
		}
		i := choose(w.demand, fleet)
		if i < 0 {
			full[w.class] = true
			continue
		}
		fleet[i].take(w.demand.Amounts)
		if last, ok := b.asked[w.id]; ok && !last.settled(w.version, now) {
			under += count(now.Sub(last.at) < patience)
			continue
		}
		asks = append(asks, w)
	}
	return asks
}

// noteAsk records a request for work.
func (b *board) noteAsk(w waiter, now time.Time) {
	a := b.asked[w.id]
	if a.version != w.version {
		a.times = 0
	}
	b.asked[w.id] = ask{now, w.version, min(a.times+1, 10)}
}
