package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	Path    string   // where it is mounted, below /sys/fs/cgroup
	Options []string // of version 1: the controllers, or name=systemd; none: version 2
}

// readHierarchies reads the cgroup hierarchies that are mounted.
func readHierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []hierarchy
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(super) < 3 || !strings.HasPrefix(fields[4], "/sys/fs/cgroup") {
			continue
		}
		h := hierarchy{Path: fields[4]}
		switch super[0] {
		case "cgroup2":
		case "cgroup":
			for option := range strings.SplitSeq(super[2], ",") {
				if !slices.Contains([]string{"rw", "ro", "xattr", "clone_children"}, option) &&
					!strings.HasPrefix(option, "release_agent=") {
					h.Options = append(h.Options, option)
				}
			}
		default:
			continue
		}
		found = append(found, h)
	}
	if len(found) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted below /sys/fs/cgroup")
	}
	return found, nil
}

// isUnified reports whether version 2 is the only one that is mounted.
func isUnified(all []hierarchy) bool { return len(all) == 1 && len(all[0].Options) == 0 }

// cgroupLimits are the limits of a node's cgroup.
type cgroupLimits struct {
	milliCPU  int64 // thousandths of a processor
	processes int64 // processes and threads of the node
	// allProcesses is the same for the cgroup that contains the cgroups of all nodes of this machine.
	allProcesses int64
	allMemory    int64 // bytes, of that cgroup
}

// makeCgroup creates a node's cgroup in each hierarchy and sets its limits. It makes the user owner the owner of the
// cgroup, who may make cgroups in it and move processes there, but may not change its limits. It may be repeated.
func makeCgroup(all []hierarchy, name string, limits cgroupLimits, owner hostID) error {
	for _, h := range all {
		parent := filepath.Join(h.Path, nodesGroup)
		dir := filepath.Join(h.Path, name)
		if isUnified(all) {
			if err := delegateControllers(h.Path); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		if isUnified(all) {
			if err := delegateControllers(parent); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if slices.Contains(h.Options, "cpuset") {
			for _, child := range []string{parent, dir} {
				if err := copyCPUSet(child); err != nil {
					return err
				}
			}
		}
		if err := limitCPU(h, all, dir, limits.milliCPU); err != nil {
			return err
		}
		if err := limitMemory(h, all, parent, limits.allMemory); err != nil {
			return err
		}
		if slices.Contains(h.Options, "pids") || isUnified(all) {
			for group, most := range map[string]int64{parent: limits.allProcesses, dir: limits.processes} {
				if err := writeFile(filepath.Join(group, "pids.max"), strconv.FormatInt(most, 10)); err != nil {
					return err
				}
			}
		}
		if err := delegate(dir, owner); err != nil {
			return err
		}
	}
	return nil
}

// delegate makes a user the owner of a cgroup and of its files by which processes are moved and controllers are given
// to the cgroups in it, not of its limits.
func delegate(dir string, owner hostID) error {
	names := []string{"", "cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control", "cgroup.event_control"}
	for _, name := range names {
		err := os.Chown(filepath.Join(dir, name), int(owner), int(owner))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // each version has some of them
			return fmt.Errorf("delegating a cgroup: %w", err)
		}
	}
	return nil
}

// delegateControllers lets the children of a cgroup of version 2 use all controllers that it has.
func delegateControllers(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(controllers)) {
		if err := writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
			return err
		}
	}
	return nil
}

// copyCPUSet gives a cgroup of version 1 the processors and memory nodes of its parent; it starts with none.
func copyCPUSet(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, name), strings.TrimSpace(string(value))); err != nil {
			return err
		}
	}
	return nil
}

// limitCPU sets the quota of a node's processors in the hierarchy that has it.
func limitCPU(h hierarchy, all []hierarchy, dir string, milliCPU int64) error {
	const period = 100_000 // microseconds
	quota := strconv.FormatInt(milliCPU*period/1000, 10)
	switch {
	case isUnified(all):
		return writeFile(filepath.Join(dir, "cpu.max"), quota+" "+strconv.Itoa(period))
	case slices.Contains(h.Options, "cpu"):
		return writeFile(filepath.Join(dir, "cpu.cfs_quota_us"), quota)
	}
	return nil
}

// limitMemory limits the memory of a cgroup in the hierarchy that has it.
func limitMemory(h hierarchy, all []hierarchy, dir string, bytes int64) error {
	switch value := strconv.FormatInt(bytes, 10); {
	case isUnified(all):
		return writeFile(filepath.Join(dir, "memory.max"), value)
	case slices.Contains(h.Options, "memory"):
		return writeFile(filepath.Join(dir, "memory.limit_in_bytes"), value)
	}
	return nil
}

// enterCgroup moves a process into a node's cgroup.
func enterCgroup(all []hierarchy, name string, pid int) error {
	for _, h := range all {
		if err := writeFile(filepath.Join(h.Path, name, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// removeWait is how long removeCgroup waits for processes that the kernel is ending.
const removeWait = 10 * time.Second

// removeCgroup kills the processes of a node's cgroup and of the cgroups in it, and removes these cgroups from each
// hierarchy. It may be repeated.
func removeCgroup(all []hierarchy, name string) error {
	var problems []error
	for _, h := range all {
		problems = append(problems, removeTree(filepath.Join(h.Path, name)))
		_ = os.Remove(filepath.Join(h.Path, nodesGroup)) // fails while another node is there
	}
	return errors.Join(problems...)
}

// removeTree removes a cgroup and all cgroups in it. It kills their processes.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("removing a cgroup: %w", err)
	}
	slices.Reverse(dirs) // the inner ones first
	deadline := time.Now().Add(removeWait)
	for _, path := range dirs {
		for {
			err := unix.Rmdir(path)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("removing cgroup %s: %w", path, err)
			}
			killProcesses(path)
			time.Sleep(5 * time.Millisecond) // the end of a process in a cgroup sends no notification
		}
	}
	return nil
}

// killProcesses kills the processes of one cgroup.
func killProcesses(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for pid := range strings.FieldsSeq(string(data)) {
		if id, err := strconv.Atoi(pid); err == nil && id > 1 {
			_ = unix.Kill(id, unix.SIGKILL)
		}
	}
}

// hasProcesses reports whether a cgroup or one in it has a process.
func hasProcesses(dir string) bool {
	found := false
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "cgroup.procs" {
			data, err := os.ReadFile(path)
			found = found || err == nil && len(data) > 0
		}
		return nil
	})
	return found
}

// writeFile writes to a file that exists, such as one below /proc or of a cgroup.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
