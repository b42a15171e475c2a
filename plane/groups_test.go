package plane

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// The control groups of a purged region stayed on the machine.
func TestTheGroupsOfADataDirectoryAreRemoved(t *testing.T) {
	parent := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(filepath.Join(parent, "cgroup.procs")); err != nil {
		parent = "/sys/fs/cgroup"
	}
	dir, other := t.TempDir(), t.TempDir()
	group := filepath.Join(parent, GroupName(dir), "clusters-1.hc-1")
	foreign := filepath.Join(parent, GroupName(other))
	for _, d := range []string{group, foreign} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Skipf("this machine lets the test make no control group: %v", err)
		}
	}
	t.Cleanup(func() {
		if err := os.Remove(foreign); err != nil {
			t.Errorf("the group of another data directory: %v", err)
		}
	})
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }
	t.Cleanup(end)
	pid := []byte(strconv.Itoa(sleeper.Process.Pid))
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), pid, 0o644); err != nil {
		t.Skipf("this machine lets the test move no process: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveGroups(ended, dir); err == nil {
		t.Error("a group with a process is removed")
	}
	end()
	for range 2 {
		if err := RemoveGroups(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(group)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group is left: %v", err)
	}
}
