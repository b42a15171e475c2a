package process

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// Limits of one plane's control group.
type Limits = controlplane.Limits

// controllers are those that limit a plane.
var controllers = []string{"memory", "pids", "cpu"}

// cgroups makes control groups of planes below one directory of each hierarchy.
type cgroups struct {
	version int               // 1 or 2
	roots   map[string]string // controller -> directory of the groups of this runtime's planes
}

// findCgroups returns where this process may make control groups. The groups of two runtimes have different
// directories.
func findCgroups(home string) (*cgroups, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	c := cgroupsOf(string(content), plane.GroupName(home))
	if c == nil {
		return nil, errors.New("no hierarchy of control groups limits memory")
	}
	c.sweep()
	if err := c.open(); err != nil {
		return nil, err
	}
	return c, nil
}

// sweep removes the groups, of any runtime, that have no process: those of planes that were killed.
func (c *cgroups) sweep() {
	for _, root := range c.roots {
		for _, pattern := range []string{"/*", ""} {
			groups, _ := filepath.Glob(filepath.Join(filepath.Dir(root), plane.GroupPrefix+"*") + pattern)
			for _, dir := range groups {
				_ = os.Remove(dir) // the kernel refuses to remove a group that is in use
			}
		}
	}
}

// cgroupsOf returns the hierarchies that a mount table has: those of version 1 when one limits memory, otherwise
// version 2; nil when there is none.
func cgroupsOf(mountinfo, name string) *cgroups {
	one, two := map[string]string{}, ""
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		mount, kind := strings.Fields(left), strings.Fields(right)
		if !ok || len(mount) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				if slices.Contains(controllers, option) {
					one[option] = filepath.Join(mount[4], name)
				}
			}
		case "cgroup2":
			two = filepath.Join(mount[4], name)
		}
	}
	switch {
	case one["memory"] != "":
		return &cgroups{version: 1, roots: one}
	case two != "":
		return &cgroups{version: 2, roots: map[string]string{"": two}}
	}
	return nil
}

// open makes the directories of the groups.
func (c *cgroups) open() error {
	for _, root := range c.roots {
		if c.version == 2 {
			// Each parent hands its controllers on. A parent that has processes of its own refuses, unless it is the root.
			if err := handOn(filepath.Dir(root)); err != nil {
				return err
			}
		}
		if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if c.version == 2 {
			if err := handOn(root); err != nil {
				return err
			}
		}
	}
	return nil
}

func handOn(group string) error {
	return os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0o644)
}

// group is the control group of one plane: a directory in each hierarchy.
type group struct {
	version int
	dirs    map[string]string
}

func (c *cgroups) group(slot controlplane.ID) group {
	g := group{version: c.version, dirs: map[string]string{}}
	for controller, root := range c.roots {
		g.dirs[controller] = filepath.Join(root, slot.Namespace+"."+slot.Name)
	}
	return g
}

// dir returns the directory that has a controller's files; "" for a controller that is not mounted.
func (g group) dir(controller string) string {
	if g.version == 2 {
		return g.dirs[""]
	}
	return g.dirs[controller]
}

// place limits a process and everything that it starts. Another runtime's sweep may remove the group before the process
// is in it, so it is tried twice.
func (g group) place(pid int, l Limits) error {
	var err error
	for range 2 {
		if err = g.limit(l); err == nil {
			if err = g.add(pid); err == nil {
				return nil
			}
		}
	}
	return err
}

// limit makes the group and sets its limits.
func (g group) limit(l Limits) error {
	for _, dir := range g.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	memory, weight, value := "memory.max", "cpu.weight", l.CPUWeight
	if g.version == 1 {
		memory, weight, value = "memory.limit_in_bytes", "cpu.shares", l.CPUWeight*1024/100
	}
	return errors.Join(g.set("memory", memory, strconv.FormatInt(l.Memory, 10)),
		g.set("pids", "pids.max", strconv.Itoa(l.Processes)), g.set("cpu", weight, strconv.Itoa(value)))
}

func (g group) set(controller, file, value string) error {
	dir := g.dir(controller)
	if dir == "" {
		return nil // memory is what matters; it is always there
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}

// add puts a process with all its threads into the group.
func (g group) add(pid int) error {
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// processes returns the ids of the group's processes.
func (g group) processes() (pids []int) {
	content, err := os.ReadFile(filepath.Join(g.dir("memory"), "cgroup.procs"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(content)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes returns the ids of all processes of this machine.
func processes() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// paths returns the group's directories.
func (g group) paths() []string { return slices.Collect(maps.Values(g.dirs)) }

// killed counts the processes of the group that the kernel has ended for want of memory.
func (g group) killed() int {
	file := "memory.events"
	if g.version == 1 {
		file = "memory.oom_control"
	}
	content, err := os.ReadFile(filepath.Join(g.dir("memory"), file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			return n
		}
	}
	return 0
}

// remove deletes the group. A group that still has a process stays, and is used again.
func (g group) remove() {
	for _, dir := range g.dirs {
		_ = os.Remove(dir)
	}
}
