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
	"golang.org/x/sys/unix"

	"atoll.dev/node"
	"atoll.dev/node/supervisor"
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
		listener, err := net.ListenPacket("udp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		_, port, _ := net.SplitHostPort(listener.LocalAddr().String())
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
		_ = listener.SetReadDeadline(time.Now().Add(time.Second))
		if n, from, err := listener.ReadFrom(make([]byte, 64)); err == nil {
			t.Errorf("%d bytes from %s: a node reaches this machine", n, from)
		}
		if tried == 0 {
			t.Skip("this machine has no address")
		}
	})
	t.Run("settings of the machine", func(t *testing.T) {
		for _, file := range []string{"/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/profiling"} {
			if out, err := script("exec 3>>" + file); err == nil || !strings.Contains(err.Error(), "Read-only") &&
				!strings.Contains(err.Error(), "Permission denied") {
				t.Errorf("%s opens for writing: %q, %v", file, out, err)
			}
		}
	})
	t.Run("rights of the machine's root", func(t *testing.T) {
		if err := supervisor.TryUserNamespace(w.dir); err != nil {
			if os.Getenv("ATOLL_NODES_WITHOUT_USER_NAMESPACE") != "1" {
				t.Fatalf("nodes have no user namespaces here: %v; ATOLL_NODES_WITHOUT_USER_NAMESPACE=1 accepts that", err)
			}
			t.Skip(err)
		}
		attackAsRoot(t, w, script)
	})
	t.Run("disk of the machine", func(t *testing.T) {
		out, err := script("stat --file-system --format '%b %S' /")
		var blocks, size int64
		if _, scanErr := fmt.Sscan(out, &blocks, &size); err != nil || scanErr != nil {
			t.Fatalf("%q, %v, %v", out, err, scanErr)
		}
		var machine unix.Statfs_t
		if err := unix.Statfs(w.dir, &machine); err != nil {
			t.Fatal(err)
		}
		if total := int64(machine.Blocks) * machine.Frsize; blocks*size > total/4 {
			t.Errorf("a pod may write %d of %d bytes", blocks*size, total)
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

// attackAsRoot tries what the root of a machine may and the root of a node may not. No attempt does harm if it
// succeeds.
func attackAsRoot(t *testing.T, w *world, script func(text string) (string, error)) {
	var disk unix.Stat_t
	if err := unix.Stat(w.dir, &disk); err != nil {
		t.Fatal(err)
	}
	inNode := func(text string) (string, error) { // in the mounts of the node, with its programs
		return script("nsenter --target 1 --mount -- bash -c '" + text + "'")
	}
	if _, err := inNode("mkdir -p /mnt && mount -t tmpfs attack /mnt && " +
		"mkdir /mnt/proc /mnt/cgroup && mount -t proc proc /mnt/proc"); err != nil {
		t.Fatalf("the attacker has no /proc of its own: %v", err)
	}
	for _, file := range []string{"sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/sysrq", "sys/kernel/panic",
		"sys/vm/drop_caches", "sys/vm/overcommit_memory", "sys/fs/file-max", "sysrq-trigger"} {
		if _, err := os.Stat("/proc/" + file); err != nil {
			continue // this kernel does not have it
		}
		for _, run := range []func(string) (string, error){inNode, script} {
			path := "/mnt/proc/" + file
			if out, err := run("test -e " + path + " || exec 3>>/proc/" + file + "; exec 3>>" + path); err == nil {
				t.Errorf("%s opens for writing: %q", file, out)
			}
		}
	}
	refusals := []struct{ name, attempt, want string }{
		{"the machine's disk", fmt.Sprintf("mknod /mnt/disk b %d %d", unix.Major(disk.Dev), unix.Minor(disk.Dev)),
			"Operation not permitted"},
		{"the machine's devices", "mount -t devtmpfs attack /mnt/cgroup", "ermission"},
		{"a hierarchy of cgroups with a release agent", "mount -t cgroup -o none,name=attack attack /mnt/cgroup",
			"permission denied"},
		{"the machine's clock", "date --set=@$(date +%s)", "Operation not permitted"},
		{"the bound of the node's processes", "for f in /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max; do " +
			"test -e $f && exec 3>>$f; done", "Permission denied"},
	}
	if _, err := os.Stat("/proc/modules"); err == nil { // not every kernel has modules
		refusals = append(refusals, struct{ name, attempt, want string }{"a module of the kernel",
			`perl -e "\$a = q(0); \$b = q(0); syscall(175, \$a, 1, \$b); die qq(\$!\n)"`, "Operation not permitted"})
	}
	for _, r := range refusals {
		if out, err := inNode(r.attempt); err == nil || !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: %q, %v; want %q", r.name, out, err, r.want)
		}
	}
	if out, _ := inNode("find /sys/fs/cgroup -name release_agent"); out != "" {
		t.Errorf("the node has release agents: %s", out)
	}
	if out, err := inNode("test ! -c /dev/kmsg && cat /proc/self/uid_map"); err != nil || len(strings.Fields(out)) != 3 ||
		strings.Fields(out)[1] == "0" {
		t.Errorf("the ids of the node are %q, %v", out, err)
	}
	first := map[uint32]string{}
	homes, err := filepath.Glob(filepath.Join(w.dir, "*", "status.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range homes {
		status, err := node.ReadStatus(filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		if other := first[status.FirstID]; status.FirstID == 0 || other != "" {
			t.Errorf("the root of %s is user %d, which %q has, too", file, status.FirstID, other)
		}
		first[status.FirstID] = file
	}
	if len(first) != 2 {
		t.Errorf("%d nodes have written their first ids", len(first))
	}
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
