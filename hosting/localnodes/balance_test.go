package localnodes

import (
	"net"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/hosting/controlplane"
)

func TestAServiceHasAnAddressOfItsOwnWhileItIsBalanced(t *testing.T) {
	m, err := New(Options{Dir: "/tmp/none", Programs: map[controlplane.Version]string{"1": "/none"}})
	if err != nil {
		t.Fatal(err)
	}
	cluster := controlplane.ID{Namespace: "clusters-1", Name: t.Name()}
	t.Cleanup(func() { m.StopServices(cluster) })
	ports := []ServicePort{{Port: 18080, NodePort: 30080}}
	a, b := types.NamespacedName{Namespace: "n", Name: "a"}, types.NamespacedName{Namespace: "n", Name: "b"}
	of := func(service types.NamespacedName, ports ...ServicePort) netip.Addr {
		t.Helper()
		address, err := m.ForwardService(cluster, service, ports)
		if err != nil || !balancedNetwork.Contains(address) {
			t.Fatalf("address %s, error %v", address, err)
		}
		return address
	}
	first := of(a, ports...)
	if other := of(b, ports...); other == first {
		t.Errorf("two Services have the address %s", other)
	}
	if again := of(a, append(ports, ServicePort{Port: 18081, NodePort: 30081})...); again != first {
		t.Errorf("with another port the address is %s, not %s", again, first)
	}
	m.StopService(cluster, a)
	if conn, err := net.Dial("tcp", netip.AddrPortFrom(first, 18080).String()); err == nil {
		conn.Close()
		t.Error("the address of a deleted Service accepts connections")
	}
	taken, err := net.Listen("tcp4", netip.AddrPortFrom(first, 18080).String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if other := of(a, ports...); other == first {
		t.Error("a Service has an address on whose port a program listens")
	}
}

func TestAClusterHasABoundedNumberOfAddresses(t *testing.T) {
	m, err := New(Options{Dir: "/tmp/none", Programs: map[controlplane.Version]string{"1": "/none"}})
	if err != nil {
		t.Fatal(err)
	}
	cluster := controlplane.ID{Namespace: "clusters-1", Name: t.Name()}
	t.Cleanup(func() { m.StopServices(cluster) })
	ports := []ServicePort{{Port: 18082, NodePort: 30080}}
	for i := range maxBalancedOfCluster {
		name := types.NamespacedName{Namespace: "n", Name: string(rune('A' + i))}
		if _, err := m.ForwardService(cluster, name, ports); err != nil {
			t.Fatal(err)
		}
	}
	more := types.NamespacedName{Namespace: "n", Name: "more"}
	if address, err := m.ForwardService(cluster, more, ports); err == nil {
		t.Errorf("one Service more has the address %s", address)
	}
	m.StopService(cluster, types.NamespacedName{Namespace: "n", Name: "A"})
	if _, err := m.ForwardService(cluster, more, ports); err != nil {
		t.Errorf("the room of a deleted Service is not used: %v", err)
	}
}
