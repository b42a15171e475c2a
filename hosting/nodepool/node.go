package nodepool

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	realnode "atoll.dev/node"
)

const (
	simulatedLabel    = controlplane.SimulatedLabel
	providerLabel     = "atoll.dev/node-provider" // of a real node
	instanceTypeLabel = "node.kubernetes.io/instance-type"

	// appliedAnnotation of a Node holds the labels and taints that the pool set, so
	// that they are removed when the pool's spec no longer has them.
	appliedAnnotation = "atoll.dev/applied"
	// drainingAnnotation of a Node is when its drain began; a drain is never undone.
	drainingAnnotation = "atoll.dev/draining-since"
	// poolUIDAnnotation of a Node is the UID of its NodePool: the record of deleted pools names UIDs.
	poolUIDAnnotation = "atoll.dev/node-pool-uid"

	kubeReservedMilliCPU  = 500
	kubeReservedMemoryMiB = 1024
	maxPods               = 250
)

func nodeResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
}

// node is the part of a Node that this package uses.
type node struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		PodCIDR       string  `json:"podCIDR"`
		ProviderID    string  `json:"providerID"`
		Unschedulable bool    `json:"unschedulable"`
		Taints        []taint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
		NodeInfo   struct {
			KubeletVersion string `json:"kubeletVersion"`
			Runtime        string `json:"containerRuntimeVersion"` // set by a kubelet
		} `json:"nodeInfo"`
	} `json:"status"`
}

type condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

type taint struct {
	Key       string `json:"key"`
	Value     string `json:"value,omitempty"`
	Effect    string `json:"effect"`
	TimeAdded string `json:"timeAdded,omitempty"`
}

func (n *node) isReady() bool {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// readyChangedAt returns when the condition Ready last changed; the Node's creation time when it has no such condition.
func (n *node) readyChangedAt() time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			return c.LastTransitionTime.Time
		}
	}
	return n.Metadata.CreationTimestamp.Time
}

// isDraining reports whether the node is being drained, in order to be removed.
func (n *node) isDraining() bool { return n.Metadata.Annotations[drainingAnnotation] != "" }

func (n *node) drainingSince(now time.Time) time.Time {
	at, err := time.Parse(time.RFC3339, n.Metadata.Annotations[drainingAnnotation])
	if err != nil {
		return now
	}
	return at
}

// isLeaving reports whether the node's machine has asked to leave the cluster.
func (n *node) isLeaving() bool { return n.Metadata.Annotations[realnode.LeavingAnnotation] != "" }

// hasKubelet reports whether a kubelet has ever reported the node's status.
func (n *node) hasKubelet() bool { return n.Status.NodeInfo.Runtime != "" }

// index returns the number at the end of the node's name, -1 when it has none.
func (n *node) index() int {
	_, number, _ := cutLast(n.Metadata.Name, "-")
	i, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return i
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// nodePrefix returns the first part of the names of a pool's nodes: the customer's name of the pool. The name of the
// NodePool is the cluster's name, a hyphen and that prefix.
func nodePrefix(pool *hypershift.NodePool) string {
	return strings.TrimPrefix(pool.Name, pool.Spec.ClusterName+"-")
}

func nodeName(prefix string, i int) string { return prefix + "-" + strconv.Itoa(i) }

// appliedContent is the content of appliedAnnotation.
type appliedContent struct {
	Labels map[string]string `json:"labels,omitempty"`
	Taints []taint           `json:"taints,omitempty"`
}

// appliedText returns the content of appliedAnnotation for the pool's labels and taints.
func (w wanted) appliedText() string {
	text, _ := json.Marshal(appliedContent{w.labels, w.taints}) // a struct of strings can always be encoded
	return string(text)
}

// networkFull is the error of a node for which a network of its cluster has no
// room.
type networkFull struct {
	kind    string // pods or machines
	network netip.Prefix
}

func (e *networkFull) Error() string {
	return fmt.Sprintf("the cluster's network of %s %s has no room for another node", e.kind, e.network)
}

// newNode returns the object of a new Node. place is the index of its addresses in the cluster's networks, which no
// other node of the cluster has. The error is a *networkFull.
func (w wanted) newNode(pool *hypershift.NodePool, name string, place int) (*unstructured.Unstructured, error) {
	pods, ok := subnet(w.pods, w.hostBits, place)
	if !ok {
		return nil, &networkFull{kind: "pods", network: w.pods}
	}
	ip, ok := offset(w.machines, firstMachine+place)
	if !ok {
		return nil, &networkFull{kind: "machines", network: w.machines}
	}
	labels := maps.Clone(w.labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		hypershift.NodePoolLabel: pool.Name, instanceTypeLabel: w.instance.Name,
		"kubernetes.io/arch": w.instance.Arch, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
		"node-role.kubernetes.io/worker": "",
	})
	annotations := map[string]any{appliedAnnotation: w.appliedText(), poolUIDAnnotation: string(pool.UID)}
	if w.trust.ID != "" {
		annotations[controlplane.NodeCAAnnotation] = string(w.trust.ID)
	}
	if w.provider == cluster.Simulated {
		labels[simulatedLabel] = "true"
		annotations["kwok.x-k8s.io/node"] = "fake"
	} else {
		delete(labels, simulatedLabel)
		labels[providerLabel] = string(w.provider)
	}
	if w.provider == cluster.External { // its kubelet says what the machine is
		delete(labels, instanceTypeLabel)
		delete(labels, "kubernetes.io/arch")
	}
	taints := make([]any, 0, len(w.taints))
	for _, t := range w.taints {
		taints = append(taints, map[string]any{"key": t.Key, "value": t.Value, "effect": t.Effect})
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "labels": toAnyMap(labels), "annotations": annotations},
		"spec": map[string]any{
			"podCIDR": pods.String(), "podCIDRs": []any{pods.String()}, "taints": taints,
			"providerID": providerID(pool, w.provider, name),
		},
	}}
	if w.provider == cluster.External {
		return object, nil
	}
	status := w.simulatedStatus(name, ip)
	if w.provider != cluster.Simulated {
		// Kubelet replaces all of it. Until then the node has a version, and room for the pods of an earlier node of
		// its name.
		delete(status, "addresses")
		status["nodeInfo"] = w.nodeInfo("", "", "")
	}
	object.Object["status"] = status
	return object, nil
}

// nodeInfo returns status.nodeInfo of a new Node.
func (w wanted) nodeInfo(osImage, kernel, runtime string) map[string]any {
	return map[string]any{
		"kubeletVersion": "v" + w.version, "kubeProxyVersion": "v" + w.version, "architecture": w.instance.Arch,
		"operatingSystem": "linux", "osImage": osImage, "kernelVersion": kernel, "containerRuntimeVersion": runtime,
		"machineID": "", "systemUUID": "", "bootID": "",
	}
}

// simulatedStatus returns the status of a Node that no kubelet fills in.
func (w wanted) simulatedStatus(name string, ip netip.Addr) map[string]any {
	resources := func(cpu, memory, disk string) map[string]any {
		return map[string]any{"cpu": cpu, "memory": memory, "ephemeral-storage": disk, "pods": strconv.Itoa(maxPods)}
	}
	return map[string]any{
		"capacity": resources(strconv.Itoa(w.instance.CPU), fmt.Sprintf("%dMi", w.instance.MemoryMiB),
			fmt.Sprintf("%dGi", w.diskGiB)),
		"allocatable": resources(fmt.Sprintf("%dm", w.instance.CPU*1000-kubeReservedMilliCPU),
			fmt.Sprintf("%dMi", w.instance.MemoryMiB-kubeReservedMemoryMiB), fmt.Sprintf("%dGi", w.diskGiB*9/10)),
		"addresses": []any{
			map[string]any{"type": "InternalIP", "address": ip.String()},
			map[string]any{"type": "Hostname", "address": name},
		},
		"nodeInfo": w.nodeInfo("simulated by KWOK", "none", "simulated://kwok"),
	}
}

// specPatch returns a merge patch that sets the pool's labels and taints on a node, and removes those that an earlier
// spec of the pool set; nil when the node has them.
func (w wanted) specPatch(n *node) map[string]any {
	if n.Metadata.Annotations[appliedAnnotation] == w.appliedText() || len(n.Spec.Taints) >= maxTaints {
		return nil // trimNode has dropped some of so many taints, and a patch replaces all
	}
	var before appliedContent
	_ = json.Unmarshal([]byte(n.Metadata.Annotations[appliedAnnotation]), &before) // a text that is no JSON counts as none
	labels := map[string]any{}
	for key := range before.Labels {
		labels[key] = nil
	}
	for key, value := range w.labels {
		labels[key] = value
	}
	for key := range labels { // the labels of newNode stay
		if ours := n.Metadata.Labels[key]; isReserved(key) {
			labels[key] = ours
		}
	}
	taints := slices.Clone(w.taints)
	for _, t := range n.Spec.Taints {
		same := func(o taint) bool { return o.Key == t.Key && o.Effect == t.Effect }
		if !slices.ContainsFunc(before.Taints, same) && !slices.ContainsFunc(w.taints, same) {
			taints = append(taints, t) // Kubernetes' or the customer's
		}
	}
	return map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": map[string]any{appliedAnnotation: w.appliedText()},
			"resourceVersion": n.Metadata.ResourceVersion},
		"spec": map[string]any{"taints": taints},
	}
}

// isReserved reports whether newNode sets a label, so that the pool's spec must not.
func isReserved(key string) bool {
	switch key {
	case hypershift.NodePoolLabel, simulatedLabel, providerLabel, instanceTypeLabel, "kubernetes.io/arch",
		"kubernetes.io/os", "kubernetes.io/hostname", "node-role.kubernetes.io/worker":
		return true
	}
	return false
}

func toAnyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// subnet returns the i-th network with a prefix of bits within network, counted from 0; false when network has no
// such one.
func subnet(network netip.Prefix, bits, i int) (netip.Prefix, bool) {
	if i < 0 || bits-network.Bits() < 31 && i >= 1<<(bits-network.Bits()) {
		return netip.Prefix{}, false
	}
	at, ok := addShifted(network.Addr(), network.Addr().BitLen()-bits, i)
	if !ok || !network.Contains(at) {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(at, bits), true
}

// subnetIndex is the inverse of subnet: it returns the index of a node's network of pods within network.
func subnetIndex(network netip.Prefix, pods string) (int, bool) {
	p, err := netip.ParsePrefix(pods)
	if err != nil || !network.Contains(p.Addr()) {
		return 0, false
	}
	shift := p.Addr().BitLen() - p.Bits()
	from, to := network.Addr().AsSlice(), p.Addr().AsSlice()
	n := 0
	for bit := range p.Addr().BitLen() - shift {
		n = n<<1 | int(to[bit/8]>>(7-bit%8)&1) - int(from[bit/8]>>(7-bit%8)&1)
		if n > 1<<30 {
			return 0, false
		}
	}
	return n, true
}

// offset returns the i-th address of a network.
func offset(network netip.Prefix, i int) (netip.Addr, bool) {
	at, ok := addShifted(network.Addr(), 0, i)
	return at, ok && network.Contains(at)
}

// addShifted returns addr + i<<shift, and false after an overflow.
func addShifted(addr netip.Addr, shift, i int) (netip.Addr, bool) {
	bytes := addr.AsSlice()
	carry := uint64(i) << (shift % 8)
	for at := len(bytes) - 1 - shift/8; at >= 0 && carry > 0; at-- {
		carry += uint64(bytes[at])
		bytes[at] = byte(carry)
		carry >>= 8
	}
	out, ok := netip.AddrFromSlice(bytes)
	return out, ok && carry == 0
}
