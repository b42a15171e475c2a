package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// defaultPods is the network of pods on nodes that have none of their own.
const defaultPods = "10.244.0.0/16"

// addresses knows which pod has which address, so that none is given twice.
type addresses struct {
	mu   sync.Mutex
	used map[netip.Addr]types.UID
	of   map[types.UID][]netip.Addr
	next map[netip.Prefix]netip.Addr // where the search for a free one goes on: an address rests before it is given again
}

// newAddresses begins with the addresses that pods have already.
func newAddresses(ctx context.Context, client kubernetes.Interface) (*addresses, error) {
	a := &addresses{used: map[netip.Addr]types.UID{}, of: map[types.UID][]netip.Addr{}, next: map[netip.Prefix]netip.Addr{}}
	pods, err := client.CoreV1().Pods(corev1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: bound("")})
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of pods: %w", err)
	}
	for i := range pods.Items {
		a.mark(&pods.Items[i])
	}
	return a, nil
}

// mark keeps what a pod says that it has.
func (a *addresses) mark(pod *corev1.Pod) {
	if pod.Spec.HostNetwork {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ip := range pod.Status.PodIPs {
		if at, err := netip.ParseAddr(ip.IP); err == nil {
			a.give(at, pod.UID)
		}
	}
}

// take gives the pod an address of a network: the one it has, or a free one.
func (a *addresses) take(pod types.UID, network netip.Prefix) (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	network = network.Masked()
	for _, ip := range a.of[pod] {
		if network.Contains(ip) {
			return ip, nil
		}
	}
	first := network.Addr().Next().Next() // the network's own and its gateway's are nobody's
	start, ok := a.next[network]
	if !ok || !network.Contains(start) {
		start = first
	}
	ip := start
	for {
		next := ip.Next()
		if !network.Contains(next) { // ip is the last: the broadcast address
			next = first
		} else if _, taken := a.used[ip]; !taken {
			a.next[network] = next
			a.give(ip, pod)
			return ip, nil
		}
		if ip = next; ip == start || !network.Contains(ip) {
			return netip.Addr{}, fmt.Errorf("no free address in %s", network)
		}
	}
}

// give is called with the lock held.
func (a *addresses) give(ip netip.Addr, pod types.UID) {
	if now, taken := a.used[ip]; taken && now == pod {
		return
	}
	a.used[ip] = pod
	a.of[pod] = append(a.of[pod], ip)
}

// release takes a deleted pod's addresses back.
func (a *addresses) release(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ip := range a.of[pod] {
		if a.used[ip] == pod {
			delete(a.used, ip)
		}
	}
	delete(a.of, pod)
}

// podIPs is what the stages call for a pod's addresses: one of each of its node's pod networks.
func (s *simulation) podIPs(nodeName string, hostNetwork bool, uid, _, _ string) ([]string, error) {
	node, ok := s.nodes.Get(nodeName)
	if !ok {
		return nil, fmt.Errorf("node %s is gone", nodeName)
	}
	if hostNetwork {
		return internal(node), nil
	}
	networks := node.Spec.PodCIDRs
	if len(networks) == 0 {
		networks = []string{defaultPods}
	}
	var ips []string
	for _, network := range networks {
		prefix, err := netip.ParsePrefix(network)
		if err != nil {
			return nil, fmt.Errorf("pod network of node %s: %w", nodeName, err)
		}
		ip, err := s.ips.take(types.UID(uid), prefix)
		if err != nil {
			return nil, fmt.Errorf("pods of node %s: %w", nodeName, err)
		}
		ips = append(ips, ip.String())
	}
	return ips, nil
}

// internal returns the node's own addresses.
func internal(node *corev1.Node) []string {
	var ips []string
	for _, at := range node.Status.Addresses {
		if at.Type == corev1.NodeInternalIP {
			ips = append(ips, at.Address)
		}
	}
	return ips
}
