package supervisor

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// The root of a node reached each address of this machine through the bridge.
func TestANodeReachesNoAddressOfItsMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	runtime.LockOSThread() // forever: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	const address = "10.1.1.1" // of the machine, on another link
	other, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	ip, _ := netlink.ParseAddr(address + "/24")
	if err := netlink.AddrAdd(other, ip); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(other); err != nil {
		t.Fatal(err)
	}
	heard, err := net.ListenPacket("udp4", address+":7777")
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	attack := func(bridge string, gateway string) (reached bool) {
		t.Helper()
		attacker := exec.Command("sleep", "1000")
		attacker.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
		if err := attacker.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = attacker.Process.Kill(); _ = attacker.Wait() }()
		n := node.Network{Bridge: bridge, Address: "10.90.3.11/24", Gateway: gateway}
		if err := connectBridge(n, "an-"+bridge, attacker.Process.Pid); err != nil {
			t.Fatal(err)
		}
		run := func(script string) {
			t.Helper()
			cmd := exec.Command("nsenter", "-t", strconv.Itoa(attacker.Process.Pid), "-n", "bash", "-c", script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", script, err, out)
			}
		}
		own, err := ensureBridge(n) // again, as for a second node
		if err != nil {
			t.Fatal(err)
		}
		run("ip address add 10.90.3.11/24 dev eth0 && ip link set eth0 up && ip route add " + address + " dev eth0 && " +
			"ip neighbor add " + address + " dev eth0 lladdr " + own.Attrs().HardwareAddr.String())
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && !reached; {
			run("echo hello >/dev/udp/" + address + "/7777")
			_ = heard.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, _, err := heard.ReadFrom(make([]byte, 64))
			reached = err == nil
		}
		return reached
	}
	if attack("closed", "") {
		t.Error("the root of a node reaches an address of its machine")
	}
	if !attack("open", "10.90.3.1") {
		t.Error("the test cannot reach the machine through a bridge that is open")
	}
}
