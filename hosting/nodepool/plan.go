package nodepool

import (
	"cmp"
	"slices"
	"time"

	"atoll.dev/cluster"
)

// decision is the next change of a pool's nodes. Every part may be executed twice,
// and with an outdated view of the nodes.
type decision struct {
	create  int           // so many new nodes
	drain   []*node       // to be drained and then removed, also those whose drain has begun
	abandon []*node       // to be removed without a drain: they do not answer
	inPlace []*node       // to be upgraded in place
	again   time.Duration // when time alone changes the decision; 0: never
}

// plan decides which nodes to create, drain, remove and change. nodes are all nodes of the pool, in any order.
func plan(w wanted, nodes []*node, now time.Time, unhealthyAfter time.Duration) decision {
	var d decision
	var live []*node
	for _, n := range nodes {
		left := unhealthyAfter - now.Sub(latest(n.readySince(), w.awakeSince[n.Metadata.UID]))
		switch {
		case n.Metadata.DeletionTimestamp != nil:
		case n.draining() && w.isDead(n) && left <= 0: // its kubelet ends no pod
			d.abandon = append(d.abandon, n)
		case w.isLost(n):
			if age := now.Sub(n.Metadata.CreationTimestamp.Time); age < unhealthyAfter {
				d.again = sooner(d.again, unhealthyAfter-age)
				live = append(live, n)
			} else {
				d.abandon = append(d.abandon, n)
			}
		case w.provider == cluster.External && n.leaving() && !n.draining():
			d.drain = append(d.drain, n)
		case n.draining():
			if w.isDead(n) {
				d.again = sooner(d.again, left)
			}
			d.drain = append(d.drain, n)
		case w.autoRepair && !n.ready() && w.waitsForRoom(n): // as would a node in its place
			live = append(live, n)
		case w.autoRepair && !n.ready() && left <= 0:
			d.abandon = append(d.abandon, n)
		default:
			if w.autoRepair && !n.ready() {
				d.again = sooner(d.again, left)
			}
			live = append(live, n)
		}
	}
	if w.invalid != nil {
		return d // the order cannot be read: existing nodes stay
	}
	outdated := 0
	for _, n := range live {
		switch {
		case w.current(n):
		case w.inPlace && w.sameMachine(n):
			d.inPlace = append(d.inPlace, n)
		default:
			outdated++
		}
	}
	switch excess := len(live) - w.replicas; {
	case excess < 0 && w.provider == cluster.External: // machines join by themselves
	case excess < 0:
		d.create = -excess
	case excess == 0 && outdated > 0:
		d.create = 1 // a replacement first
	case excess > 0:
		// An old node waits until what replaces it is ready, when only the
		// replacement is one too many.
		if outdated > 0 && excess == 1 && !allFreshReady(w, live) && !unreadyOutdated(w, live) {
			return d
		}
		slices.SortStableFunc(live, func(a, b *node) int {
			return cmp.Or(cmp.Compare(w.worth(a), w.worth(b)), cmp.Compare(b.index(), a.index()))
		})
		d.drain = append(d.drain, live[:excess]...)
	}
	return d
}

// allFreshReady reports whether every current node is ready.
func allFreshReady(w wanted, nodes []*node) bool {
	return !slices.ContainsFunc(nodes, func(n *node) bool { return w.current(n) && !n.ready() })
}

// unreadyOutdated reports whether a node is both outdated and not ready.
func unreadyOutdated(w wanted, nodes []*node) bool {
	return slices.ContainsFunc(nodes, func(n *node) bool { return !w.current(n) && !n.ready() })
}

// worth orders nodes for removal, the least first: nodes that are not ready before
// ready ones, and among equals outdated nodes first.
func (w wanted) worth(n *node) int {
	worth := 0
	if n.ready() {
		worth += 2
	}
	if w.current(n) {
		worth++
	}
	return worth
}

// freeNames returns n names for new nodes of a pool: those with the lowest
// numbers that no node has.
func freeNames(prefix string, nodes []*node, n int) []string {
	var names []string
	taken := map[string]bool{}
	for _, x := range nodes {
		taken[x.Metadata.Name] = true
	}
	for i := 0; len(names) < n; i++ {
		if name := nodeName(prefix, i); !taken[name] {
			names = append(names, name)
		}
	}
	return names
}
