package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// board holds, in memory, what the feed brought of management clusters and
// placements. Decisions choose by it, and it says for which of the clusters that
// wait there may be room. It is behind the database by what the feed has not
// brought yet, so a transaction checks each choice. The caller gives the time.
type board struct {
	mcs     map[string]mcEntry // by id
	sums    map[string]sum     // what entries reserve, by the management cluster's id
	held    map[string]sum     // what transactions of this process are about to reserve there
	entries map[string]entry   // of placements, by their documents' ids
	waiting int
	order   []waiter // those that wait, the oldest first; nil: not known
	asked   map[string]ask
	lost    map[string]bool // management clusters whose agents are reported as lost, by id
	told    map[string]bool // placements there, by id, of which that was said
	turned  bool            // there may be something to say
}

type mcEntry struct {
	reading
	removed bool
	moved   time.Time // when its agent's report was seen to move last, by this machine's clock
}

// entry is a placement, as far as others' room depends on it.
type entry struct {
	version int64
	removed bool
	cluster string
	mc      string    // id; "" while it waits
	orphan  time.Time // since when its cluster is gone and it is not; zero: it is not gone
	demand  Demand
	class   string // the same for those that demand the same
	created time.Time
}

type waiter struct {
	id string // of the placement's document
	entry
}

// ask is when work was asked for a waiting cluster last, in which version its
// placement was then, and how often it was asked without another version.
type ask struct {
	at      time.Time
	version int64
	times   int
}

// settled says that an ask has been answered, or is as good as lost. An answer
// that is the same as the one before makes no version, and adapters may be
// away: so it is asked again after a while, and each time after a longer one.
func (a ask) settled(version int64, now time.Time) bool {
	return a.version != version || now.Sub(a.at) >= min(patience<<(a.times-1), maxPatience)
}

const (
	// maxAsked bounds how many clusters are tried again at a time: the next are
	// asked for when these have been placed, or answered that they still wait.
	maxAsked = 100
	// patience is how long an ask counts as under way.
	patience    = 2 * time.Second
	maxPatience = 64 * time.Second
)

func newBoard() *board {
	return &board{mcs: map[string]mcEntry{}, sums: map[string]sum{}, held: map[string]sum{},
		entries: map[string]entry{}, asked: map[string]ask{}, lost: map[string]bool{}, told: map[string]bool{}}
}

// apply takes a document, or its tombstone, and returns whether that may make
// room for somebody.
func (b *board) apply(d store.Document, now time.Time) (news bool, err error) {
	switch d.Kind {
	case kindMC:
		if d.Scope != "" {
			return false, nil // a tenant's own, on which nothing is placed
		}
		have, known := b.mcs[d.ID]
		if known && have.doc.Version > d.Version {
			return false, nil
		}
		if !known || !have.doc.SameState(d) {
			fresh := mcEntry{reading: read(d), removed: d.Removed, moved: now}
			if known && fresh.reportTime().Equal(have.reportTime()) {
				fresh.moved = have.moved
			}
			b.mcs[d.ID] = fresh
		}
		b.lose(d.ID, b.mcs[d.ID].reading.lost())
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
		b.turned = b.turned || b.lost[e.mc]
		// One that waits may have been decided before the room was there of
		// which the feed has told already.
		return e.waits() || e.removed, nil
	}
	return false, nil
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// count adds what a placement reserves to the sum of its management cluster,
// times so often.
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

// hold reserves in memory for a transaction that is under way, so that those
// beside it choose others; with times -1 it ends.
func (b *board) hold(mc string, amounts Amounts, times int) {
	s := b.held[mc]
	s = sum{s.placements + times, plus(s.reserved, amounts, int64(times))}
	if b.held[mc] = s; s.placements == 0 {
		delete(b.held, mc)
	}
}

func (e entry) waits() bool { return !e.removed && e.mc == "" }

// forget drops what only kept older states out.
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

// hosts are the management clusters with what is reserved there. They share
// their amounts with the board.
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

// fleet is hosts by name, with amounts of their own.
func (b *board) fleet(now time.Time) []ManagementCluster {
	fleet := b.hosts(now)
	for i := range fleet {
		fleet[i].Reserved = maps.Clone(fleet[i].Reserved)
	}
	slices.SortFunc(fleet, func(a, b ManagementCluster) int { return cmp.Compare(a.Name, b.Name) })
	return fleet
}

// hasSilent says that a management cluster counts as lost only since its report
// did not move, which the feed would not tell.
func (b *board) hasSilent(now time.Time) bool {
	for _, m := range b.mcs {
		if !m.removed && m.available() && now.Sub(m.moved) > silence {
			return true
		}
	}
	return false
}

// orphaned are the placements whose clusters are gone, the oldest first.
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

// take is add without a copy, for one whose amounts are its own.
func (m *ManagementCluster) take(amounts Amounts) {
	if m.Reserved == nil {
		m.Reserved = Amounts{}
	}
	for name, n := range amounts {
		m.Reserved[name] += n
	}
	m.Placements++
}

func (b *board) line() []waiter {
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

// plan returns for whom work is to be asked: the oldest for which there is room
// beside those before them, and no more than can be under way.
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
	// What found no room finds none with less.
	full := map[string]bool{}
	for _, w := range b.line() {
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

// tried notes that work was asked for.
func (b *board) tried(w waiter, now time.Time) {
	a := b.asked[w.id]
	if a.version != w.version {
		a.times = 0
	}
	b.asked[w.id] = ask{now, w.version, min(a.times+1, 10)}
}
