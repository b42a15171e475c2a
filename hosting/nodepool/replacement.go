package nodepool

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
)

// replacement is how a pool's outdated nodes are replaced.
type replacement struct {
	onDelete    bool // only after somebody has deleted them
	surge       int  // nodes that the pool may have more than ordered
	unavailable int  // ready nodes that it may have fewer than ordered; surge and unavailable are not both 0
}

// readReplacement returns the replacement of a pool with a number of replicas; r is nil for the default. An invalid r
// is the default, and an error.
func readReplacement(r *hypershift.ReplaceUpgrade, replicas int) (replacement, error) {
	fallback := replacement{surge: 1}
	if r == nil {
		return fallback, nil
	}
	switch r.Strategy {
	case "", cluster.RollingUpdate:
	case cluster.OnDelete:
		fallback.onDelete = true
		return fallback, nil
	default:
		return fallback, fmt.Errorf("spec.management.replace.strategy: must be %s or %s, not %q", cluster.RollingUpdate,
			cluster.OnDelete, r.Strategy)
	}
	limits := r.RollingUpdate
	if limits == nil {
		return fallback, nil
	}
	const field = "spec.management.replace.rollingUpdate"
	one, none := intstr.FromInt32(1), intstr.FromInt32(0)
	surge, err := intstr.GetScaledValueFromIntOrPercent(cmp.Or(limits.MaxSurge, &one), replicas, true)
	if err != nil || surge < 0 || surge > maxReplicas {
		return fallback, fmt.Errorf("%s.maxSurge: must be a number of nodes up to %d or a share such as 25%%", field,
			maxReplicas)
	}
	unavailable, err := intstr.GetScaledValueFromIntOrPercent(cmp.Or(limits.MaxUnavailable, &none), replicas, false)
	if err != nil || unavailable < 0 {
		return fallback, fmt.Errorf("%s.maxUnavailable: must be a number of nodes or a share such as 25%%", field)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1 // shares of a small pool, as a Deployment has it
	}
	// A customer who labels Nodes of his own must not get more machines than twice his replicas.
	return replacement{surge: min(surge, max(1, replicas)), unavailable: min(unavailable, replicas)}, nil
}

// replace decides how many nodes a rolling update creates now and which live nodes it drains, by the limits of
// w.replacement. It drains no ready node that the limit of unavailable nodes protects, and does not count draining
// nodes. Nodes that are not ready leave first, because their removal makes no node unavailable; but the pool keeps as
// many nodes, ready or not, as must be available: after an outage all nodes are unready for a moment.
func (w wanted) replace(live []*node) (create int, drain []*node) {
	ready, current := 0, 0
	for _, n := range live {
		if n.isReady() {
			ready++
		}
		if w.isCurrent(n) {
			current++
		}
	}
	r := w.replacement
	create = max(0, min(w.replicas+r.surge-len(live), w.replicas-current))
	available := max(0, w.replicas-r.unavailable) // must stay
	spareNodes, spareReady, over := len(live)-available, ready-available, len(live)-w.replicas-r.surge
	slices.SortStableFunc(live, func(a, b *node) int {
		return cmp.Or(cmp.Compare(w.removalRank(a), w.removalRank(b)), cmp.Compare(b.index(), a.index()))
	})
	for _, n := range live {
		mayLeave := !w.isCurrent(n) || current > w.replicas || over > 0
		if !mayLeave || spareNodes <= 0 || n.isReady() && spareReady <= 0 {
			continue
		}
		drain = append(drain, n)
		spareNodes--
		over--
		if w.isCurrent(n) {
			current--
		}
		if n.isReady() {
			spareReady--
		}
	}
	return create, drain
}
