package nodes

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func empty() *addresses {
	return &addresses{used: map[netip.Addr]types.UID{}, of: map[types.UID][]netip.Addr{}, next: map[netip.Prefix]netip.Addr{}}
}

func TestNoAddressIsGivenTwice(t *testing.T) {
	a := empty()
	network := netip.MustParsePrefix("10.1.2.0/28") // 16 addresses, of which network, gateway and broadcast are nobody's
	a.mark(&corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.2.5"}}}})
	seen := map[netip.Addr]bool{netip.MustParseAddr("10.1.2.5"): true}
	for i := range 12 {
		ip, err := a.take(types.UID(fmt.Sprint("pod-", i)), network)
		if err != nil {
			t.Fatal(err)
		}
		if seen[ip] || !network.Contains(ip) || ip.String() == "10.1.2.0" || ip.String() == "10.1.2.1" || ip.String() == "10.1.2.15" {
			t.Errorf("pod %d got %s", i, ip)
		}
		seen[ip] = true
	}
	if ip, err := a.take("one too many", network); err == nil {
		t.Errorf("a full network gave %s", ip)
	}
	first, err := a.take("pod-3", network)
	if err != nil {
		t.Fatal("asked again, a pod got nothing:", err)
	}
	a.release("pod-3")
	if ip, err := a.take("new", network); err != nil || ip != first {
		t.Errorf("what pod-3 had was given back, and the next got %s, %v", ip, err)
	}
	a.release("never seen")
}

func TestNetworksWithoutRoomGiveNothing(t *testing.T) {
	for _, network := range []string{"10.1.2.3/32", "10.1.2.2/31", "255.255.255.255/32", "fd00::1/128"} {
		if ip, err := empty().take("pod", netip.MustParsePrefix(network)); err == nil && !netip.MustParsePrefix(network).Contains(ip) {
			t.Errorf("%s gave %s", network, ip)
		}
	}
	if ip, err := empty().take("pod", netip.MustParsePrefix("fd00::/64")); err != nil || ip.String() != "fd00::2" {
		t.Errorf("got %s, %v", ip, err)
	}
}

func TestStagesAreKWOKs(t *testing.T) {
	nodes, pods, err := stages()
	if err != nil || len(nodes) != 2 || len(pods) != 3 {
		t.Errorf("%d stages of nodes, %d of pods, %v", len(nodes), len(pods), err)
	}
}
