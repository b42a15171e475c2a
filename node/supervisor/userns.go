package supervisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// hostID is a user or group id of this machine. A node whose root has the machine's id 0 is not in a user namespace.
type hostID uint32

// Ids of nodes on this machine. Each node has a range of its own. systemd gives ids below firstNodeID to containers,
// and /etc/subuid usually has those below 600100000, so that nobody else uses these.
const (
	idsOfNode    = 1 << 16
	firstNodeID  = hostID(0x7000_0000)
	afterNodeIDs = hostID(0x7ffe_0000)
)

// errNoIDs means that other nodes have all ranges of ids.
var errNoIDs = errors.New("no range of user ids is free for another node on this machine")

// chooseIDs returns the first id of a range that no node has. used are the first ids of the other nodes' ranges.
func chooseIDs(used map[hostID]bool) (hostID, error) {
	for first := firstNodeID; first < afterNodeIDs; first += idsOfNode {
		if !used[first] {
			return first, nil
		}
	}
	return 0, errNoIDs
}

// usedIDs returns the owners of the cgroups of all nodes of a hierarchy: makeCgroup makes the root of a node the owner
// of the node's cgroup. So ranges of ids are free again with the cgroup's removal, and nothing else records them.
func usedIDs(h hierarchy) (map[hostID]bool, error) {
	used := map[hostID]bool{}
	nodes, err := os.ReadDir(filepath.Join(h.Path, nodesGroup))
	if errors.Is(err, os.ErrNotExist) {
		return used, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the cgroups of nodes: %w", err)
	}
	for _, entry := range nodes {
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(h.Path, nodesGroup, entry.Name()), &stat); err == nil {
			used[hostID(stat.Uid)] = true
		}
	}
	return used, nil
}

// namespaceFlags are the namespaces that a node's first process is started in, besides that of users.
const namespaceFlags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
	syscall.CLONE_NEWNET

// processAttributes returns how the first process of a node is started. With a range of ids it is root of a user
// namespace of its own, which also owns its other namespaces, and for the machine it is a user without rights. With
// first 0 it is the machine's root.
func processAttributes(first hostID) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true, Cloneflags: namespaceFlags}
	if first != 0 {
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(first), Size: idsOfNode}}
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings, a.GidMappings, a.GidMappingsEnableSetgroups = ids, ids, true
		a.Credential = &syscall.Credential{} // the machine's root is nobody in the new user namespace
	}
	return a
}

// openUserNamespace returns the user namespace of a process.
func openUserNamespace(pid int) (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return nil, fmt.Errorf("opening the user namespace of the node: %w", err)
	}
	return f, nil
}

// TryUserNamespace returns an error with the reason when a node cannot have a user namespace of its own. Without one,
// the node's root is the machine's root. dir is an existing directory at or above the node's home. It starts a process
// in a node's namespaces, which makes a node's mounts and ends. Nothing is left behind.
func TryUserNamespace(dir string) error {
	all, err := readHierarchies()
	if err != nil {
		return err
	}
	steps := []string{"set -e", "mount -t tmpfs tmpfs /tmp", "cd /tmp", "mkdir proc sys lower upper work merged",
		"mount -t proc proc proc", "mount -t sysfs -o ro sysfs sys",
		"mount -t overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work overlay merged"}
	for i, h := range all {
		kind, options := "cgroup2", ""
		if len(h.Options) > 0 {
			kind, options = "cgroup", "-o "+strings.Join(h.Options, ",")
		}
		steps = append(steps, fmt.Sprintf("mkdir c%d; mount -t %s %s none c%d", i, kind, options, i))
	}
	steps = append(steps, "echo done", "read end || true") // until the end of the standard input
	shell, err := findProgram("sh")
	if err != nil {
		return err
	}
	cmd := exec.Command(shell, "-c", strings.Join(steps, "\n"))
	cmd.SysProcAttr = processAttributes(afterNodeIDs - idsOfNode)
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWCGROUP
	cmd.Env, cmd.Dir = environment, "/"
	var problems bytes.Buffer
	cmd.Stderr = &problems
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting a process in a user namespace: %w", err)
	}
	result := func() error {
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "done\n" {
			return errors.New("a user namespace does not permit the mounts of a node")
		}
		users, err := openUserNamespace(cmd.Process.Pid)
		if err != nil {
			return err
		}
		defer users.Close()
		mount, err := cloneMount(dir, dir, 0, users)
		if err != nil {
			return fmt.Errorf("mapping the ids of files: %w", err)
		}
		return mount.Close()
	}()
	stdin.Close()
	if err := cmd.Wait(); err != nil || result != nil {
		return errors.Join(result, err, errors.New(strings.TrimSpace(problems.String())))
	}
	return nil
}
