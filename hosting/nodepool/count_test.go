package nodepool

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// The nodes that pools order count for their cluster until the pool is deleted, with the most that may be scaled to.
func TestOrderedNodesAreCounted(t *testing.T) {
	planes := &onePlane{}
	k := &reconciler{o: Options{Planes: planes}, counted: map[loop.Key]controlplane.ID{}}
	pool := func(cluster string, spec map[string]any) *unstructured.Unstructured {
		spec["clusterName"] = cluster
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "ns"}, "spec": spec}}
	}
	key := loop.Key{Namespace: "ns", Name: "workers"}
	gone := pool("a", map[string]any{"replicas": int64(3)})
	gone.Object["metadata"].(map[string]any)["deletionTimestamp"] = "2026-11-23T00:00:00Z"
	for _, c := range []struct {
		object *unstructured.Unstructured
		want   map[string]int
	}{
		{pool("a", map[string]any{"replicas": int64(3)}), map[string]int{"a/workers": 3}},
		{pool("a", map[string]any{"replicas": int64(5000)}), map[string]int{"a/workers": maxReplicas}},
		{pool("a", map[string]any{"autoScaling": map[string]any{"min": int64(1), "max": int64(7)}}),
			map[string]int{"a/workers": 7}},
		{pool("b", map[string]any{"replicas": int64(2)}), map[string]int{"a/workers": 0, "b/workers": 2}},
		{gone, map[string]int{"a/workers": 0, "b/workers": 0}},
		{nil, map[string]int{"a/workers": 0, "b/workers": 0}},
	} {
		k.countNodes(key, c.object)
		if fmt.Sprint(planes.nodes) != fmt.Sprint(c.want) {
			t.Errorf("after %v: %v, want %v", c.object, planes.nodes, c.want)
		}
	}
	if len(k.counted) != 0 {
		t.Errorf("a deleted pool is remembered: %v", k.counted)
	}
}
