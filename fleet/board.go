package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// board is what the feed has told of management clusters and placements. It
// decides for which of the clusters that wait there may be room. It knows the
// time only as it is told.
type board struct {
	mcs     map[string]mcEntry // by id
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
}

// entry is a placement, as far as others' room depends on it.
type entry struct {
	version int64
	removed bool
	cluster string
	mc      string // id; "" while it waits
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
	return &board{mcs: map[string]mcEntry{}, entries: map[string]entry{}, asked: map[string]ask{}, lost: map[string]bool{}, told: map[string]bool{}}
}

// apply takes a document, or its tombstone, and returns whether that may make
// room for somebody.
func (b *board) apply(d store.Document) (news bool, err error) {
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
			b.mcs[d.ID] = mcEntry{read(d), d.Removed}
		}
		b.lose(d.ID, b.mcs[d.ID].reading.lost())
		return !d.Removed && (!known || have.doc.Version != d.Version), nil
	case KindPlacement:
		have, known := b.entries[d.ID]
		if known && have.version >= d.Version {
			return false, nil
		}
		p, err := placementOf(d)
		if err != nil {
			return false, err
		}
		e := entry{version: d.Version, removed: d.Removed, cluster: p.ClusterID, mc: p.ManagementClusterID, demand: p.Demand, created: d.CreatedAt}
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

// fleet is the management clusters with what is reserved there, by name.
func (b *board) fleet(now time.Time) []ManagementCluster {
	fleet := make([]ManagementCluster, 0, len(b.mcs))
	at := map[string]int{}
	for id, m := range b.mcs {
		if !m.removed {
			at[id] = len(fleet)
			fleet = append(fleet, m.at(now))
		}
	}
	for _, e := range b.entries {
		if i, ok := at[e.mc]; ok && !e.removed {
			fleet[i].take(e.demand.Amounts)
		}
	}
	slices.SortFunc(fleet, func(a, b ManagementCluster) int { return cmp.Compare(a.Name, b.Name) })
	return fleet
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
		slices.SortFunc(b.order, func(a, b waiter) int { return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id)) })
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
