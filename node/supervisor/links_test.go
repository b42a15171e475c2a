package supervisor

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// The kernel does not set the alias of a bridge when it makes it. A bridge whose supervisor was killed before it had
// the alias is adopted; a bridge of somebody else is not.
func TestABridgeOfNodesIsKnownFromItsFirstMoment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	runtime.LockOSThread() // forever: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	network := func(bridge string) node.Network {
		return node.Network{Bridge: bridge, Address: "10.90.3.11/24", Gateway: "10.90.3.1"}
	}
	addBridge := func(name string, change func(*netlink.LinkAttrs)) {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		change(&attributes)
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second finds the first one's
		bridge, err := ensureBridge(network("atoll-new"))
		if err != nil {
			t.Fatal(err)
		}
		if !isNodesBridge(bridge) {
			t.Errorf("the bridge is not known: %+v", bridge.Attrs())
		}
	}
	addBridge("atoll-killed", func(a *netlink.LinkAttrs) { a.Group = linkGroup })
	if _, err := ensureBridge(network("atoll-killed")); err != nil {
		t.Errorf("a bridge without the alias: %v", err)
	}
	addBridge("docker0", func(*netlink.LinkAttrs) {})
	if _, err := ensureBridge(network("docker0")); err == nil || !strings.Contains(err.Error(), "no node has made") {
		t.Errorf("a bridge of somebody else: error %v", err)
	}
}
