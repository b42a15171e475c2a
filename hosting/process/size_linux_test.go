package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// limitsOf reads the limits that the kernel holds a process to: memory, and processes.
func limitsOf(t *testing.T, pid int) (memory, processes string) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		value, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(value))
	}
	for line := range strings.Lines(string(content)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch part[1] {
		case "memory":
			memory = read(filepath.Join("/sys/fs/cgroup/memory", part[2], "memory.limit_in_bytes"))
		case "pids":
			processes = read(filepath.Join("/sys/fs/cgroup/pids", part[2], "pids.max"))
		case "":
			if dir := filepath.Join("/sys/fs/cgroup", part[2]); memory == "" && part[2] != "/" {
				if _, err := os.Stat(filepath.Join(dir, "memory.max")); err == nil {
					memory, processes = read(filepath.Join(dir, "memory.max")), read(filepath.Join(dir, "pids.max"))
				}
			}
		}
	}
	return memory, processes
}

// A plane has the limits of its size from its start, gets those of a larger one while it runs, keeps them while its
// nodes need them, whatever is ordered, and keeps them over a restart of hosting.
func TestAPlaneHasTheLimitsOfItsSize(t *testing.T) {
	quick.LeavesOut(t, "needs a control plane")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := process.Options{Dir: t.TempDir(), Binaries: map[controlplane.Version]string{"1.36.3": binary},
		Probes: process.Probes{Every: 100 * time.Millisecond}}
	t.Cleanup(func() { killAll(t, o) })
	spec := controlplane.Spec{Name: "walls", Release: "1.36.3", Size: cluster.Small}
	s := orderSite(t, o, spec)
	order := func(size cluster.Size, nodes int) {
		t.Helper()
		spec.Size, spec.Nodes = size, nodes
		if err := s.runtime.Ensure(s.id, spec); err != nil {
			t.Fatal(err)
		}
	}
	measured := func(wanted cluster.Size) func(controlplane.Observation) bool {
		return func(o controlplane.Observation) bool { return o.State == controlplane.Ready && o.Size.Wanted == wanted }
	}
	check := func(what string, o controlplane.Observation, want cluster.Size) {
		t.Helper()
		if o.Size.Size != want || o.Size.Limits.Memory != want.Limits().Memory || o.Size.IsEnforced != hasMemoryControl() {
			t.Errorf("%s: %+v, want %s", what, o.Size, want)
		}
		pid, ok := plane.Running(s.runtime.Dir(s.id))
		if !ok {
			t.Fatal("no process")
		}
		memory, processes := limitsOf(t, pid)
		l := want.Limits()
		if hasMemoryControl() && (memory != fmt.Sprint(l.Memory) || processes != fmt.Sprint(l.Processes)) {
			t.Errorf("%s: the kernel's limits are %s bytes and %s processes, want %+v", what, memory, processes, want.Limits())
		}
	}
	check("started small", s.await("a measured plane", measured(cluster.Small)), cluster.Small)
	pid, _ := plane.Running(s.runtime.Dir(s.id))
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("GOMEMLIMIT=%d\x00", 768<<20); !strings.Contains(string(environment), want) {
		t.Errorf("the plane's environment lacks %q", want)
	}

	order(cluster.Small, 20)
	check("with 20 nodes and no room", s.await("the need of 20 nodes", measured(cluster.Medium)), cluster.Small)
	order(cluster.Medium, 20)
	size := func(want cluster.Size) func(controlplane.Observation) bool {
		return func(o controlplane.Observation) bool { return o.State == controlplane.Ready && o.Size.Size == want }
	}
	check("with room", s.await("the size", size(cluster.Medium)), cluster.Medium)
	order(cluster.Small, 21)
	order(cluster.Small, 20)

	s.close()
	s = orderSite(t, o, spec)
	adopted := s.await("the adopted plane", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Size.IsEnforced == hasMemoryControl()
	})
	check("ordered small while it needs medium, after a restart of hosting", adopted, cluster.Medium)
	if now, _ := plane.Running(s.runtime.Dir(s.id)); now != pid {
		t.Errorf("process %d, want %d: a change of size restarts no plane", now, pid)
	}
	s.discard()
}

// A process that was started without a size, by an earlier version, keeps its limits until its next start: its
// collector aims at more memory than a small plane has.
func TestAPlaneWithoutASizeGetsOneAtItsNextStart(t *testing.T) {
	quick.LeavesOut(t, "needs a control plane")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := process.Options{Dir: t.TempDir(), Binaries: map[controlplane.Version]string{"1.36.3": binary},
		Probes: process.Probes{Every: 100 * time.Millisecond}}
	t.Cleanup(func() { killAll(t, o) })
	spec := controlplane.Spec{Name: "before", Release: "1.36.3"}
	s := orderSite(t, o, spec)
	s.await("a measured plane", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Size.Wanted == cluster.Small
	})
	spec.Size, spec.Nodes = cluster.Small, 20
	if err := s.runtime.Ensure(s.id, spec); err != nil {
		t.Fatal(err)
	}
	running := s.await("the need of 20 nodes", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Size.Wanted == cluster.Medium
	})
	if running.Size.Size != "" || running.Size.Limits.Memory != 4<<30 {
		t.Errorf("the running plane: %+v, want the limits of before", running.Size)
	}
	stop := s.runtime.Sleep
	if err := stop(s.id); err != nil {
		t.Fatal(err)
	}
	s.await("the end of the process", func(o controlplane.Observation) bool { return !o.Running })
	if err := s.runtime.Ensure(s.id, spec); err != nil {
		t.Fatal(err)
	}
	s.await("the size after the next start", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Size.Size == cluster.Medium
	})
	s.discard()
}

// A plane of each size starts with the soft limit of its memory, and the bounds of its API server's requests and of the
// events that a watch cache keeps. A plane without a size has the bounds of the largest.
func TestAPlaneStartsWithTheBoundsOfItsSize(t *testing.T) {
	quick.LeavesOut(t, "needs a control plane")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[cluster.Size][]string{
		"":             {fmt.Sprintf("GOMEMLIMIT=%d", 1<<30), "ATOLL_MAX_REQUESTS=600", "ATOLL_MAX_WATCH_EVENTS=12800"},
		cluster.Small:  {fmt.Sprintf("GOMEMLIMIT=%d", 768<<20), "ATOLL_MAX_REQUESTS=150", "ATOLL_MAX_WATCH_EVENTS=1600"},
		cluster.Medium: {fmt.Sprintf("GOMEMLIMIT=%d", 1536<<20), "ATOLL_MAX_REQUESTS=300", "ATOLL_MAX_WATCH_EVENTS=3200"},
		cluster.Large:  {fmt.Sprintf("GOMEMLIMIT=%d", 3<<30), "ATOLL_MAX_REQUESTS=600", "ATOLL_MAX_WATCH_EVENTS=12800"},
	} {
		o := process.Options{Dir: t.TempDir(), Binaries: map[controlplane.Version]string{"1.36.3": binary}}
		t.Cleanup(func() { killAll(t, o) })
		s := orderSite(t, o, controlplane.Spec{Name: "bounds", Release: "1.36.3", Size: size})
		var pid int
		s.await("the plane's process", func(controlplane.Observation) (is bool) {
			pid, is = plane.Running(s.runtime.Dir(s.id))
			return is
		})
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, variable := range want {
			if !slices.Contains(strings.Split(string(environment), "\x00"), variable) {
				t.Errorf("size %q: the environment of the plane lacks %s", size, variable)
			}
		}
		s.await("a ready plane", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
		s.discard()
		s.close()
	}
}
