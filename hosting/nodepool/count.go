package nodepool

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// countNodes passes on how many nodes a pool orders. object is its NodePool, nil for a deleted one. The order
// counts and not the nodes that exist: hosting knows it earlier, and no writer of Nodes changes it.
func (k *reconciler) countNodes(key loop.Key, object *unstructured.Unstructured) {
	var cluster controlplane.ID
	replicas := int64(0)
	if object != nil && object.GetDeletionTimestamp() == nil {
		cluster = clusterOf(object)
		replicas, _, _ = unstructured.NestedInt64(object.Object, "spec", "replicas")
		most, _, _ := unstructured.NestedInt64(object.Object, "spec", "autoScaling", "max")
		replicas = min(max(replicas, most), maxReplicas)
	}
	k.mu.Lock()
	before, isCounted := k.counted[key]
	if delete(k.counted, key); replicas > 0 {
		k.counted[key] = cluster
	}
	k.mu.Unlock()
	if isCounted && (before != cluster || replicas <= 0) {
		k.o.Planes.SetNodes(before, key.Name, 0)
	}
	if replicas > 0 {
		k.o.Planes.SetNodes(cluster, key.Name, int(replicas))
	}
}
