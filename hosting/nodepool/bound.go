package nodepool

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
	realnode "atoll.dev/node"
)

// Limits of what is kept of the Nodes of one plane. A Node that is trimmed has at most a few KiB, unless the customer
// has given it a hundred taints.
const (
	mostNodes      = 5000
	mostTaints     = 100
	mostAnnotation = 16 << 10 // bytes of an annotation of ours
)

// nodesBound bounds what hosting reads of a plane's Nodes: those with the label of a node pool, and of them what
// node has.
func nodesBound() *loop.Bound {
	return &loop.Bound{Selector: hypershift.NodePoolLabel, Most: mostNodes, Trim: trimNode}
}

// trimNode removes what type node does not have from a Node, and the labels and annotations that are not ours.
func trimNode(u *unstructured.Unstructured) {
	whole := u.Object
	metadata := map[string]any{}
	if m, ok := whole["metadata"].(map[string]any); ok {
		for _, key := range []string{"name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"} {
			if value, ok := m[key]; ok {
				metadata[key] = value
			}
		}
	}
	labels := map[string]any{}
	for key, value := range u.GetLabels() {
		if reserved(key) {
			labels[key] = value
		}
	}
	annotations := map[string]any{}
	for _, key := range []string{appliedAnnotation, drainingAnnotation, poolUIDAnnotation, realnode.KeyAnnotation,
		realnode.LeavingAnnotation} {
		if value, ok := u.GetAnnotations()[key]; ok && len(value) <= mostAnnotation {
			annotations[key] = value
		}
	}
	metadata["labels"], metadata["annotations"] = labels, annotations
	spec, status := map[string]any{}, map[string]any{}
	if s, ok := whole["spec"].(map[string]any); ok {
		for _, key := range []string{"podCIDR", "providerID", "unschedulable", "taints"} {
			if value, ok := s[key]; ok {
				spec[key] = value
			}
		}
		if taints, ok := spec["taints"].([]any); ok && len(taints) > mostTaints {
			spec["taints"] = taints[:mostTaints:mostTaints]
		}
	}
	if s, ok := whole["status"].(map[string]any); ok {
		version, _, _ := unstructured.NestedString(s, "nodeInfo", "kubeletVersion")
		runtime, _, _ := unstructured.NestedString(s, "nodeInfo", "containerRuntimeVersion")
		if version != "" || runtime != "" {
			status["nodeInfo"] = map[string]any{"kubeletVersion": version, "containerRuntimeVersion": runtime}
		}
		status["conditions"] = readyConditions(s)
	}
	// A copy, so that nothing of the whole object stays in memory.
	trimmed, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata,
		"spec": spec, "status": status})
	if err == nil {
		err = u.UnmarshalJSON(trimmed)
	}
	if err != nil { // a decoded object can be encoded
		panic(err)
	}
}

// readyConditions returns the condition Ready of a Node's status.
func readyConditions(status map[string]any) []any {
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] == "Ready" {
			return []any{map[string]any{"type": "Ready", "status": condition["status"],
				"lastTransitionTime": condition["lastTransitionTime"]}}
		}
	}
	return []any{}
}
