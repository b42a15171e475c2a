package supervisor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"atoll.dev/internal/filelock"
	"atoll.dev/node"
)

// linkInside is the name of a node's end of its link.
const linkInside = "eth0"

// lockNetworkAndCgroups makes this process the only one that changes bridges and cgroups of nodes, until release is
// called. The lock is that of the network namespace, so that no file is needed.
func lockNetworkAndCgroups() (release func(), err error) {
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if release, err = filelock.WaitFile(f); err != nil {
		return nil, fmt.Errorf("locking the bridges and cgroups of nodes: %w", err)
	}
	return release, nil
}

// connectBridge makes a link between the cluster's bridge and the network namespace of a process. It creates the bridge
// when it is missing. The caller holds the lock of lockNetworkAndCgroups.
func connectBridge(n node.Network, link string, pid int) error {
	bridge, err := ensureBridge(n)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.Bridge, err)
	}
	if old, err := netlink.LinkByName(link); err == nil {
		if err := netlink.LinkDel(old); err != nil {
			return fmt.Errorf("removing link %s of an earlier supervisor: %w", link, err)
		}
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = link
	attributes.MasterIndex = bridge.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: attributes, PeerName: linkInside, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("adding link %s: %w", link, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	return nil
}

// ensureBridge returns the cluster's bridge up: with the gateway's address, or, without a gateway, closed to this
// machine. It creates a missing one, and refuses
// a link of this name that this package has not made.
func ensureBridge(n node.Network) (netlink.Link, error) {
	bridge, err := netlink.LinkByName(n.Bridge)
	if err != nil {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.Group = n.Bridge, linkGroup
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
			return nil, err
		}
		if bridge, err = netlink.LinkByName(n.Bridge); err != nil {
			return nil, err
		}
		if err := netlink.LinkSetAlias(bridge, linkAlias); err != nil {
			return nil, err
		}
		// Without this the kernel gives the bridge an IPv6 address, and pods reach the machine by it.
		if err := setSysctl("ipv6/conf/"+n.Bridge+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if !isNodesBridge(bridge) {
		return nil, fmt.Errorf("the machine has a link of this name that no node has made (%s)", bridge.Type())
	}
	if n.Gateway == "" {
		if err := closeBridge(bridge); err != nil {
			return nil, fmt.Errorf("keeping nodes from this machine's addresses: %w", err)
		}
	} else {
		address := netlink.Addr{IPNet: ipNet(netip.PrefixFrom(netip.MustParseAddr(n.Gateway),
			netip.MustParsePrefix(n.Address).Bits()))}
		if err := netlink.AddrReplace(bridge, &address); err != nil {
			return nil, err
		}
	}
	return bridge, netlink.LinkSetUp(bridge)
}

// closeBridge makes the kernel drop all frames that nodes send to this machine itself. A machine answers on each of its
// links for all its addresses, so the root of a node could reach services of this machine that listen on another link.
// Nodes need none of its addresses: their supervisors forward connections to the router. Frames from one node to
// another do not pass the bridge's own end, which has the program. It may be repeated.
func closeBridge(bridge netlink.Link) error {
	program, err := loadDrop()
	if err != nil {
		return fmt.Errorf("loading the program that drops frames: %w", err)
	}
	defer unix.Close(program) // the link keeps the program
	return netlink.LinkSetXdpFdWithFlags(bridge, program, unix.XDP_FLAGS_SKB_MODE)
}

// loadDrop loads a program of the kernel's express data path that drops each frame, and returns its descriptor.
func loadDrop() (fd int, err error) {
	type instruction struct {
		code, registers uint8
		offset          int16
		value           int32
	}
	const xdpDrop = 1
	instructions := [2]instruction{{code: unix.BPF_ALU64 | unix.BPF_MOV, value: xdpDrop},
		{code: unix.BPF_JMP | unix.BPF_EXIT}}
	license := [1]byte{}
	attributes := struct { // the first fields of union bpf_attr
		kind, count           uint32
		instructions, license uint64
	}{kind: unix.BPF_PROG_TYPE_XDP, count: uint32(len(instructions)),
		instructions: uint64(uintptr(unsafe.Pointer(&instructions))), license: uint64(uintptr(unsafe.Pointer(&license)))}
	r, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attributes)),
		unsafe.Sizeof(attributes))
	runtime.KeepAlive(&instructions)
	runtime.KeepAlive(&license)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// isNodesBridge reports whether a link is a bridge that this package has made.
func isNodesBridge(l netlink.Link) bool {
	return l.Type() == "bridge" && (l.Attrs().Group == linkGroup || l.Attrs().Alias == linkAlias)
}

// disconnectBridge removes a node's link, and the bridge when it has no other one. The caller holds the lock of
// lockNetworkAndCgroups.
func disconnectBridge(n node.Network, link string) error {
	var problems []error
	if own, err := netlink.LinkByName(link); err == nil {
		problems = append(problems, netlink.LinkDel(own))
	}
	problems = append(problems, removeBridge(n.Bridge))
	return errors.Join(problems...)
}

// removeBridge removes a bridge of nodes that has no links; it does nothing to any other link, or when none has the
// name.
func removeBridge(name string) error {
	ports, err := os.ReadDir(filepath.Join("/sys/class/net", name, "brif"))
	if err != nil || len(ports) > 0 {
		return nil
	}
	bridge, err := netlink.LinkByName(name)
	if err != nil || !isNodesBridge(bridge) {
		return nil
	}
	return netlink.LinkDel(bridge)
}

// configureNetwork gives a node, whose network namespace is the caller's, its addresses and routes. It answers on the
// bridge for the addresses of its pods.
func configureNetwork(n node.Network, advertised string) error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if advertised != "" {
		ip := netip.MustParseAddrPort(advertised).Addr()
		if err := netlink.AddrAdd(loopback, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, ip.BitLen()))}); err != nil {
			return fmt.Errorf("address %s: %w", ip, err)
		}
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	link, err := netlink.LinkByName(linkInside)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(n.Address))}); err != nil {
		return fmt.Errorf("address %s: %w", n.Address, err)
	}
	for key, value := range map[string]string{
		"ipv4/ip_forward":                           "1",
		"ipv4/conf/" + linkInside + "/proxy_arp":    "1",
		"ipv4/neigh/" + linkInside + "/proxy_delay": "0", // else an answer for a pod waits up to 0.8 s
	} {
		if err := setSysctl(key, value); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	// Pods of other nodes answer on the bridge. Services need a route so that the kernel lets kube-proxy's rules
	// replace their addresses.
	for _, cidr := range []string{n.ClusterCIDR, n.ServiceCIDR} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(cidr)),
			Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %s: %w", cidr, err)
		}
	}
	return nil
}

// ipNet converts a prefix to an IPNet with the prefix's address, host bits included.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// setSysctl sets a value below /proc/sys/net of the caller's network namespace.
func setSysctl(key, value string) error {
	if err := writeFile(filepath.Join("/proc/sys/net", key), value); err != nil {
		return fmt.Errorf("sysctl net/%s: %w", key, err)
	}
	return nil
}
