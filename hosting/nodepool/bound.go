package nodepool

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	realnode "atoll.dev/node"
)

// Limits of the Nodes of one plane in memory. A trimmed Node has at most a few KiB, unless the customer has given it
// maxTaints taints.
const (
	maxNodes      = 5000
	maxTaints     = 100
	maxAnnotation = 16 << 10 // bytes of one annotation; a longer one is dropped
)

// nodesBound bounds which of a plane's Nodes hosting reads, and which parts: Nodes with the label of a node pool, and
// the fields of type node.
func nodesBound() *loop.Bound {
	return &loop.Bound{Selector: hypershift.NodePoolLabel, Most: maxNodes, Trim: trimNode}
}

// trimNode removes from a Node all fields that type node does not have, and all labels and annotations that hosting
// does not set.
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
		if isReserved(key) {
			labels[key] = value
		}
	}
	annotations := map[string]any{}
	for _, key := range []string{appliedAnnotation, drainingAnnotation, poolUIDAnnotation, realnode.KeyAnnotation,
		realnode.LeavingAnnotation, controlplane.NodeCAAnnotation} {
		if value, ok := u.GetAnnotations()[key]; ok && len(value) <= maxAnnotation {
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
		if taints, ok := spec["taints"].([]any); ok && len(taints) > maxTaints {
			spec["taints"] = taints[:maxTaints:maxTaints]
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
	// Encoding and decoding copies the kept parts, so that the memory of the whole object can be freed.
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
