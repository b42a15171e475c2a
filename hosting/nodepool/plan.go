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
	createCount int           // number of nodes to create
	drain       []*node       // to be drained and then removed, also those whose drain has begun
	remove      []*node       // to be removed without a drain, because no kubelet would end their pods
	inPlace     []*node       // to be upgraded in place
	again       time.Duration // after which time alone would change the decision; 0: never
}

// plan decides which nodes to create, drain, remove and change. nodes are all nodes of the pool, in any order.
func plan(w wanted, nodes []*node, now time.Time, unhealthyAfter time.Duration) decision {
	var d decision
	var live []*node
	for _, n := range nodes {
		left := unhealthyAfter - now.Sub(later(n.readyChangedAt(), w.awakeSince[n.Metadata.UID]))
		switch {
		case n.Metadata.DeletionTimestamp != nil:
		case n.isDraining() && w.isUnreadyRealNode(n) && (left <= 0 || !n.hasKubelet()): // no kubelet ends its pods
			d.remove = append(d.remove, n)
		case w.hasNeverRun(n):
			if age := now.Sub(n.Metadata.CreationTimestamp.Time); age < unhealthyAfter {
				d.again = sooner(d.again, unhealthyAfter-age)
				live = append(live, n)
			} else {
				d.remove = append(d.remove, n)
			}
		case w.provider == cluster.External && n.isLeaving() && !n.isDraining():
			d.drain = append(d.drain, n)
		case n.isDraining():
			if w.isUnreadyRealNode(n) {
				d.again = sooner(d.again, left)
			}
			d.drain = append(d.drain, n)
		case w.autoRepair && !n.isReady() && w.waitsForRoom(n): // a node in its place would have no room either
			live = append(live, n)
		case w.autoRepair && !n.isReady() && left <= 0:
			d.remove = append(d.remove, n)
		default:
			if w.autoRepair && !n.isReady() {
				d.again = sooner(d.again, left)
			}
			live = append(live, n)
		}
	}
	if w.invalid != nil {
		return d // the pool's spec is invalid: existing nodes stay
	}
	outdated := 0
	for _, n := range live {
		switch {
		case w.isCurrent(n):
		case w.inPlace && w.hasInstanceType(n):
			d.inPlace = append(d.inPlace, n)
		default:
			outdated++
		}
	}
	excess := len(live) - w.replicas
	switch {
	case outdated > 0 && !w.replacement.onDelete:
		create, drain := w.replace(live)
		d.createCount, d.drain = create, append(d.drain, drain...)
	case excess < 0 && w.provider == cluster.External: // machines join by themselves
	case excess < 0:
		d.createCount = -excess
	case excess > 0:
		slices.SortStableFunc(live, func(a, b *node) int {
			return cmp.Or(cmp.Compare(w.removalRank(a), w.removalRank(b)), cmp.Compare(b.index(), a.index()))
		})
		d.drain = append(d.drain, live[:excess]...)
	}
	return d
}

// removalRank orders nodes for removal, the lowest rank first: nodes that are not ready before ready ones, and within
// both groups outdated nodes first.
func (w wanted) removalRank(n *node) int {
	worth := 0
	if n.isReady() {
		worth += 2
	}
	if w.isCurrent(n) {
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

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
