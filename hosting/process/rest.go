package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"atoll.dev/plane"
)

// restLimit bounds the wait for the end of a killed process: only a process that the kernel holds back needs longer.
const restLimit = 10 * time.Second

// endRest ends the processes that the plane's main process has left behind. A plane starts no processes, but one that
// was taken over on a machine without all walls may. No process of the plane exists afterwards, or endRest returns an
// error.
func (x *runner) endRest() error {
	group, isLimited := x.runtime.group(x.slot)
	if isLimited {
		_ = group.set("pids", "pids.max", "0") // no more processes; the next start sets the limit again
	}
	user := 0
	if os.Geteuid() == 0 && x.runtime.users.isHeld(x.record.User, x.slot) {
		user = x.record.User
	}
	isOurs := func(pid int) bool {
		return isLimited && slices.Contains(group.processes(), pid) ||
			user != 0 && userOf(pid) == user && !isInOtherGroup(pid, group)
	}
	for limit := time.Now().Add(restLimit); time.Now().Before(limit); {
		var candidates []int
		if isLimited {
			candidates = group.processes()
		}
		if user != 0 {
			others := slices.DeleteFunc(processes(), func(pid int) bool { return userOf(pid) != user })
			candidates = append(candidates, others...)
		}
		ended, err := plane.EndProcesses(candidates, isOurs, restLimit)
		if err != nil {
			return fmt.Errorf("the processes that the plane has left behind: %w", err)
		}
		if ended == 0 {
			return nil
		}
		x.log.Warn("a plane had left processes behind; they were ended", "processes", ended)
	}
	return errors.New("the plane starts processes faster than hosting ends them")
}

// userOf returns the effective user of a process; -1 for a process that has ended.
func userOf(pid int) int { return ownerOf(fmt.Sprintf("/proc/%d", pid)) }

// ownerOf returns the user to whom a file belongs; -1 for no file.
func ownerOf(path string) int {
	info, err := os.Lstat(path)
	if err != nil {
		return -1
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// isInOtherGroup reports whether a process is in the control group of a plane other than that of a group. Two homes, of
// which one is a copy of the other, may have a plane with the same user.
func isInOtherGroup(pid int, g group) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		path := strings.TrimSpace(line)
		if !strings.Contains(path, "/"+plane.GroupPrefix) {
			continue
		}
		isIn := func(dir string) bool {
			return strings.HasSuffix(path, filepath.Join("/", filepath.Base(filepath.Dir(dir)), filepath.Base(dir)))
		}
		if !slices.ContainsFunc(g.paths(), isIn) {
			return true
		}
	}
	return false
}

// kill ends a process that hangs; cause is why.
func (x *runner) kill(cause error) error {
	err := x.process.Kill()
	x.process = nil
	return errors.Join(cause, err, x.endRest())
}
