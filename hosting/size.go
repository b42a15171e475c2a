package hosting

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// orderedNodes are the nodes that node pools order: cluster, name of the pool, replicas. Hosting.mu guards them.
type orderedNodes map[controlplane.ID]map[string]int

// total returns the number of nodes that all node pools of a cluster order.
func (n orderedNodes) total(id controlplane.ID) (sum int) {
	for _, replicas := range n[id] {
		sum += replicas
	}
	return sum
}

// set records a pool's replicas, 0 for a deleted pool, and reports whether the cluster's sum has changed.
func (n orderedNodes) set(id controlplane.ID, pool string, replicas int) bool {
	before := n[id][pool]
	switch {
	case replicas == before:
		return false
	case replicas > 0 && n[id] == nil:
		n[id] = map[string]int{pool: replicas}
	case replicas > 0:
		n[id][pool] = replicas
	default:
		if delete(n[id], pool); len(n[id]) == 0 {
			delete(n, id)
		}
	}
	return true
}

// SetNodes records how many nodes a node pool of a cluster orders, 0 for a deleted pool: the size of the control plane
// follows them. It may be called for a cluster that hosting does not know, at any time.
func (h *Hosting) SetNodes(id controlplane.ID, pool string, replicas int) {
	h.mu.Lock()
	changed := h.nodes.set(id, pool, max(replicas, 0))
	h.mu.Unlock()
	if changed {
		h.clusters.Trigger(loop.Key(id))
	}
}

// sizeStatus returns the member size of the status; nil for a plane without a size.
func sizeStatus(s controlplane.SizeState) *hypershift.SizeStatus {
	if s.Size == "" {
		return nil
	}
	status := &hypershift.SizeStatus{Class: string(s.Size), Wanted: string(s.Wanted), MemoryMiB: s.Limits.Memory >> 20,
		Processes: s.Limits.Processes, CPUWeight: s.Limits.CPUWeight, Nodes: s.Size.Limits().Nodes, Enforced: s.IsEnforced,
		Message: sizeMessage(s)}
	if !s.OutOfMemory.IsZero() {
		status.OutOfMemory = &metav1.Time{Time: s.OutOfMemory}
	}
	return status
}

// sizeMessage returns, for the cluster's owner, what is not as it should be, "" when all is.
func sizeMessage(s controlplane.SizeState) (message string) {
	grows := s.Wanted.Compare(s.Size) > 0
	switch {
	case !s.OutOfMemory.IsZero() && (grows || s.Size == cluster.Large):
		message = fmt.Sprintf("at %s the control plane had used up its memory, was ended and was started again",
			s.OutOfMemory.UTC().Format(time.RFC3339))
		if !grows {
			return message + "; there is no larger size: delete objects that the cluster does not need, " +
				"and list fewer at the same time"
		}
		return message + fmt.Sprintf("; it becomes %s when its management cluster has room", s.Wanted)
	case grows:
		return fmt.Sprintf("the control plane needs the size %s, and gets it when its management cluster has room", s.Wanted)
	case s.IsRefused:
		return "the limits of this size do not hold: the management cluster's machine has refused them; they are tried again"
	case !s.IsEnforced:
		return "no limit is enforced: the management cluster's machine has no control groups for hosting"
	}
	return ""
}
