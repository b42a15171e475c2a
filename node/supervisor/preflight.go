package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// installAdvice is the next step when a program of the distribution is missing; %s is its package.
const installAdvice = "on Debian and Ubuntu, as root: apt-get install --no-install-recommends %s"

// Preflight returns what this machine lacks for real nodes; nil when it lacks nothing. programs is the path of
// atoll-node. Preflight tries namespaces and mounts in a thread that ends, and leaves nothing behind.
func Preflight(programs string) []Missing {
	var missing []Missing
	add := func(part, reason, advice string) { missing = append(missing, Missing{part, reason, advice}) }
	if os.Geteuid() != 0 {
		add("root", fmt.Sprintf("this process runs as user %d", os.Geteuid()), "run it as root, for example with sudo")
		return missing // nothing else can be tried
	}
	for _, file := range []string{programs, filepath.Join(filepath.Dir(programs), "node", "containerd")} {
		if _, err := os.Stat(file); err != nil {
			add("atoll-node", err.Error(), "build it with make nodes")
			break
		}
	}
	if _, err := findProgram("runc"); err != nil {
		add("runc", err.Error(), fmt.Sprintf(installAdvice, "runc"))
	}
	_, noNFT := findProgram("nft")
	_, noIPTables := findProgram("iptables")
	if noNFT != nil && noIPTables != nil {
		add("nft or iptables", noNFT.Error(), fmt.Sprintf(installAdvice, "nftables"))
	}
	missing = append(missing, missingCgroups()...)
	if err := tryNamespaces(); err != nil {
		add("namespaces, overlayfs or BPF", err.Error(),
			"the kernel needs all three, and a container around this process must permit them")
	}
	return missing
}

// missingCgroups returns the controllers that no mounted hierarchy has.
func missingCgroups() []Missing {
	all, err := readHierarchies()
	if err != nil {
		return []Missing{{"cgroups", err.Error(), "mount cgroup version 2 or 1 at /sys/fs/cgroup"}}
	}
	var have []string
	for _, h := range all {
		have = append(have, h.Options...)
		if isUnified(all) {
			data, _ := os.ReadFile(filepath.Join(h.Path, "cgroup.controllers"))
			have = append(have, strings.Fields(string(data))...)
		}
	}
	var missing []Missing
	for _, controller := range []string{"cpu", "memory", "pids", "cpuset"} {
		if !slices.Contains(have, controller) {
			missing = append(missing, Missing{"cgroup controller " + controller, "no hierarchy below /sys/fs/cgroup has it",
				"enable it in the kernel's command line"})
		}
	}
	if err := unix.Access(all[0].Path, unix.W_OK); err != nil {
		missing = append(missing, Missing{"cgroups", all[0].Path + ": " + err.Error(), "mount it writable"})
	}
	return missing
}

// tryNamespaces makes the namespaces of a node, an overlay in memory and a closed bridge, in a thread that ends.
func tryNamespaces() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its namespaces with it
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
				unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP); err != nil {
				return fmt.Errorf("making namespaces: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("making mounts private: %w", err)
			}
			if err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""); err != nil {
				return fmt.Errorf("mounting tmpfs: %w", err)
			}
			for _, dir := range []string{"lower", "upper", "work", "merged"} {
				if err := os.Mkdir("/tmp/"+dir, 0o755); err != nil {
					return err
				}
			}
			if err := unix.Mount("overlay", "/tmp/merged", "overlay", 0,
				"lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work"); err != nil {
				return fmt.Errorf("mounting an overlay: %w", err)
			}
			mount, err := cloneMount("/tmp", "/tmp", unix.MOUNT_ATTR_RDONLY, nil)
			if err != nil {
				return fmt.Errorf("making a mount that is attached nowhere, as Linux 5.12 can: %w", err)
			}
			mount.Close()
			return tryBridge()
		}()
	}()
	return <-result
}

// tryBridge makes a bridge that is closed to its machine. The bridge ends with the network namespace of the thread.
func tryBridge() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "preflight"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("making a bridge: %w", err)
	}
	if err := closeBridge(bridge); err != nil {
		return fmt.Errorf("closing a bridge to its machine: %w", err)
	}
	return nil
}

// findProgram returns the path of a program, which it searches for in the PATH of a node's programs.
func findProgram(name string) (string, error) {
	for dir := range strings.SplitSeq(strings.TrimPrefix(environment[0], "PATH="), ":") {
		path := filepath.Join(dir, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s", name, strings.TrimPrefix(environment[0], "PATH="))
}

// chooseProxy returns nftables where the program and the kernel have it, else iptables.
func chooseProxy() proxyMode {
	path, err := findProgram("nft")
	if err == nil && exec.Command(path, "--check", "add table ip atoll-preflight").Run() == nil {
		return nftables
	}
	return iptables
}
