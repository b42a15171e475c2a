package localnodes

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/node/supervisor"
)

// Bounds of the Services of type LoadBalancer that have an address on this machine.
const (
	maxBalanced          = 1000
	maxBalancedOfCluster = 50
)

// balancedNetwork has the addresses of Services of type LoadBalancer. It belongs to this machine's loopback.
var balancedNetwork = netip.MustParsePrefix("127.77.0.0/16")

// triesForAddress is how many addresses a Service tries, because a program of this machine may listen on a port of all
// addresses, or another Service may have the address.
const triesForAddress = 8

// ServicePort is one TCP port of a Service, and the port of every node that leads to it.
type ServicePort struct{ Port, NodePort uint16 }

// serviceKey identifies a Service of a cluster.
type serviceKey struct {
	cluster controlplane.ID
	service types.NamespacedName
}

// balancers are the Services that have an address on this machine.
type balancers struct {
	mu  sync.Mutex
	all map[serviceKey]balancer
}

type balancer struct {
	address netip.Addr
	ports   []ServicePort
	stop    func()
}

// ForwardService gives a Service an address on this machine's loopback and forwards connections to its ports to the
// nodes of its cluster, until StopService. It returns the address, which depends on the names of cluster and Service,
// so that the Service has the same one after a restart unless another one has taken it meanwhile. It may be repeated,
// also with other ports. The error says why there is no address; the Service has none then.
func (m *Machines) ForwardService(cluster controlplane.ID, service types.NamespacedName,
	ports []ServicePort) (netip.Addr, error) {
	m.balancers.mu.Lock()
	defer m.balancers.mu.Unlock()
	k := serviceKey{cluster, service}
	old, exists := m.balancers.all[k]
	if exists && slices.Equal(old.ports, ports) {
		return old.address, nil
	}
	if exists {
		m.balancers.remove(k)
	}
	used, ofCluster := map[netip.Addr]bool{}, 0
	for other, b := range m.balancers.all {
		used[b.address] = true
		if other.cluster == cluster {
			ofCluster++
		}
	}
	if len(used) >= maxBalanced || ofCluster >= maxBalancedOfCluster {
		return netip.Addr{}, fmt.Errorf("no address is left: at most %d Services of type LoadBalancer of a machine and "+
			"%d of a cluster have one; delete another such Service", maxBalanced, maxBalancedOfCluster)
	}
	var problems []error
	for _, address := range candidates(k) {
		if used[address] {
			continue
		}
		listeners, err := listenOn(address, ports)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		stop := supervisor.ForwardToNodes(listeners, func() []string { return m.homesOf(cluster) }, m.o.Log)
		m.balancers.all[k] = balancer{address: address, ports: slices.Clone(ports), stop: stop}
		return address, nil
	}
	return netip.Addr{}, errors.Join(append([]error{errors.New("no address of this machine is free for the Service")},
		problems...)...)
}

// StopService ends what ForwardService began for a Service. It may be repeated.
func (m *Machines) StopService(cluster controlplane.ID, service types.NamespacedName) {
	m.balancers.mu.Lock()
	defer m.balancers.mu.Unlock()
	m.balancers.remove(serviceKey{cluster, service})
}

// StopServices ends what ForwardService began for the Services of a cluster.
func (m *Machines) StopServices(cluster controlplane.ID) {
	m.balancers.mu.Lock()
	defer m.balancers.mu.Unlock()
	for k := range m.balancers.all {
		if k.cluster == cluster {
			m.balancers.remove(k)
		}
	}
}

// remove ends one balancer. The caller holds mu.
func (b *balancers) remove(k serviceKey) {
	if old, exists := b.all[k]; exists {
		old.stop()
		delete(b.all, k)
	}
}

// candidates returns the addresses that a Service tries, the preferred one first.
func candidates(k serviceKey) []netip.Addr {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%s", k.cluster, k.service)
	hosts := uint32(1)<<(32-balancedNetwork.Bits()) - 2 // without the first and the last address
	base := balancedNetwork.Addr().As4()
	var found []netip.Addr
	for i := range uint32(triesForAddress) {
		at := (h.Sum32()%hosts+i)%hosts + 1
		found = append(found, netip.AddrFrom4([4]byte{base[0], base[1], byte(at >> 8), byte(at)}))
	}
	return found
}

// listenOn listens on all ports of an address, or on none.
func listenOn(address netip.Addr, ports []ServicePort) (open []supervisor.NodePort, err error) {
	defer func() {
		if err != nil {
			for _, p := range open {
				p.Listener.Close()
			}
			open = nil
		}
	}()
	for _, p := range ports {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(address, p.Port).String())
		if err != nil {
			return open, err
		}
		open = append(open, supervisor.NodePort{Listener: l, Port: p.NodePort})
	}
	return open, nil
}

// homesOf returns the homes of a cluster's machines.
func (m *Machines) homesOf(cluster controlplane.ID) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var homes []string
	for k, x := range m.all {
		if k.cluster == cluster {
			homes = append(homes, x.home)
		}
	}
	slices.Sort(homes)
	return homes
}
