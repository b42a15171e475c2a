//go:build realnodes

package realnodes

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"atoll.dev/test/testsite"
)

// attacker is a pod that is root on its node, with the node's programs.
const attacker = `
apiVersion: v1
kind: Pod
metadata: {name: attacker, namespace: default}
spec:
  hostNetwork: true
  hostPID: true
  terminationGracePeriodSeconds: 0
  containers:
  - name: attacker
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
    securityContext: {privileged: true, runAsUser: 0}
    volumeMounts: [{name: usr, mountPath: /usr}, {name: lib, mountPath: /lib}, {name: lib64, mountPath: /lib64}]
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /usr/lib64}}
`

// TestTheRootOfANodeIsKeptFromItsMachine tries what a cluster's administrator can do with a privileged pod.
func TestTheRootOfANodeIsKeptFromItsMachine(t *testing.T) {
	w := newWorld(t, 0)
	w.apply(attacker)
	w.await("the attacker runs", "Running", "get", "pod", "attacker", "-o", "jsonpath={.status.phase}")
	script := func(text string) (string, error) {
		return w.run("", "exec", "attacker", "--", "/usr/bin/bash", "-c", "export PATH=/usr/sbin:/usr/bin; "+text)
	}
	testsite.EventuallyWithin(t, "the attacker has a shell", limit, func() error {
		_, err := script("ip route show")
		return err
	})
	t.Run("addresses of the machine", func(t *testing.T) {
		heard, err := net.ListenPacket("udp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer heard.Close()
		_, port, _ := net.SplitHostPort(heard.LocalAddr().String())
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		tried := 0
		for _, a := range addresses {
			ip, _, _ := net.ParseCIDR(a.String())
			if ip.To4() == nil || ip.IsLoopback() {
				continue
			}
			tried++
			_, err := script(fmt.Sprintf("ip route replace %[1]s dev eth0; ip neighbor replace %[1]s dev eth0 lladdr %[3]s; "+
				"for i in 1 2 3; do echo attack >/dev/udp/%[1]s/%[2]s; done", ip, port, bridgeAddress(t)))
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = heard.SetReadDeadline(time.Now().Add(time.Second))
		if n, from, err := heard.ReadFrom(make([]byte, 64)); err == nil {
			t.Errorf("%d bytes from %s: a node reaches this machine", n, from)
		}
		if tried == 0 {
			t.Skip("this machine has no address")
		}
	})
	t.Run("settings of the machine", func(t *testing.T) {
		for _, file := range []string{"/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/profiling"} {
			if out, err := script("exec 3>>" + file); err == nil || !strings.Contains(err.Error(), "Read-only") {
				t.Errorf("%s opens for writing: %q, %v", file, out, err)
			}
		}
	})
	t.Run("memory of the machine", func(t *testing.T) {
		files, _ := filepath.Glob("/sys/fs/cgroup/memory/atoll-nodes/memory.limit_in_bytes")
		if len(files) == 0 {
			files = []string{"/sys/fs/cgroup/atoll-nodes/memory.max"}
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if total := memoryOfMachine(t); err != nil || most > total/4*3 {
			t.Errorf("nodes may use %s of %d bytes", text, total)
		}
	})
}

// bridgeAddress returns the hardware address of the bridge of the only cluster with real nodes.
func bridgeAddress(t *testing.T) string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Type() == "bridge" && strings.HasPrefix(link.Attrs().Name, "atoll-") {
			return link.Attrs().HardwareAddr.String()
		}
	}
	t.Fatal("no bridge")
	return ""
}

func memoryOfMachine(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
