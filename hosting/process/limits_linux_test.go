package process_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// sizedSite starts a small plane whose use is measured. The test is skipped where no control group limits memory.
func sizedSite(t *testing.T) (s *site, spec controlplane.Spec) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane, which -short leaves out")
	}
	if !hasMemoryControl() {
		t.Skip("no control group can be made here")
	}
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := process.Options{Dir: t.TempDir(), Binaries: map[controlplane.Version]string{"1.36.3": binary},
		Probes: process.Probes{Every: 100 * time.Millisecond}}
	t.Cleanup(func() { killAll(t, o) })
	spec = controlplane.Spec{Name: "walls", Release: "1.36.3", Size: cluster.Small}
	s = orderSite(t, o, spec)
	s.await("a measured plane", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Size.Wanted == cluster.Small && o.Size.IsEnforced
	})
	return s, spec
}

// memoryLimitFile returns the file that has the memory limit of a process's control group.
func memoryLimitFile(t *testing.T, pid int) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, file := range []string{filepath.Join("/sys/fs/cgroup/memory", part[2], "memory.limit_in_bytes"),
			filepath.Join("/sys/fs/cgroup", part[2], "memory.max")} {
			if _, err := os.Stat(file); err == nil && (part[1] == "memory" || part[1] == "") {
				return file
			}
		}
	}
	t.Fatalf("process %d has no control group with a limit of memory: %s", pid, content)
	return ""
}

// The kernel may refuse the limits of a larger size: the plane's status says so, and they are tried again until they
// hold, without another order or start.
func TestRefusedLimitsAreTriedAgain(t *testing.T) {
	s, spec := sizedSite(t)
	pid, _ := plane.Running(s.runtime.Dir(s.id))
	file := memoryLimitFile(t, pid)
	if err := unix.Mount("/dev/full", file, "", unix.MS_BIND, ""); err != nil {
		s.discard()
		t.Skipf("no file can be put over %s: %v", file, err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(file, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	spec.Size, spec.Nodes = cluster.Medium, 20
	if err := s.runtime.Ensure(s.id, spec); err != nil {
		t.Fatal(err)
	}
	refused := s.await("refused limits", func(o controlplane.Observation) bool { return o.Size.IsRefused })
	if refused.Size.Size != cluster.Medium || refused.Size.IsEnforced {
		t.Errorf("refused: %+v, want the size medium, not enforced", refused.Size)
	}
	unmount()
	s.await("limits that hold", func(o controlplane.Observation) bool { return !o.Size.IsRefused && o.Size.IsEnforced })
	memory, processes := limitsOf(t, pid)
	if want := cluster.Medium.Limits(); memory != fmt.Sprint(want.Memory) || processes != fmt.Sprint(want.Processes) {
		t.Errorf("the kernel's limits are %s bytes and %s processes, want %+v", memory, processes, want)
	}
	s.discard()
}

// A plane that uses up its memory is ended by the kernel and started again, alone: its neighbour in the same runtime
// runs on. It then needs the next larger size, and has that one's limits once it is ordered.
func TestAPlaneThatUsedUpItsMemoryBecomesLarger(t *testing.T) {
	s, spec := sizedSite(t)
	neighbour := controlplane.ID{Namespace: "clusters-walls", Name: "hc-neighbour"}
	if err := s.runtime.Ensure(neighbour, controlplane.Spec{Name: "neighbour", Release: "1.36.3",
		Size: cluster.Small}); err != nil {
		t.Fatal(err)
	}
	var before controlplane.Observation
	s.await("the neighbour", func(controlplane.Observation) bool {
		var err error
		before, err = s.runtime.Observe(neighbour)
		return err == nil && before.State == controlplane.Ready
	})
	pid, _ := plane.Running(s.runtime.Dir(s.id))
	leaveLittleMemory(t, pid)
	admin, err := s.runtime.Client(s.id)
	if err != nil {
		t.Fatal(err)
	}
	config, err := admin.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() { fillMemory(t, config, stop) })
	}
	ended := s.await("the end for want of memory", func(o controlplane.Observation) bool {
		return !o.Size.OutOfMemory.IsZero() && o.Failure != nil
	})
	close(stop)
	load.Wait()
	if ended.Failure.Reason != controlplane.OutOfMemory || ended.Size.Wanted != cluster.Medium {
		t.Errorf("the plane was ended with %+v, size %+v; want %s, and the need of medium", ended.Failure, ended.Size,
			controlplane.OutOfMemory)
	}
	again := s.await("the plane's next start", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready
	})
	if now, _ := plane.Running(s.runtime.Dir(s.id)); now == pid {
		t.Errorf("the plane is still process %d", pid)
	}
	if again.Size.Wanted != cluster.Medium || again.Size.Size != cluster.Small || again.Size.OutOfMemory.IsZero() {
		t.Errorf("started again: %+v, want a small plane that needs medium, with the time of its end", again.Size)
	}
	spec.Size = cluster.Medium
	if err := s.runtime.Ensure(s.id, spec); err != nil {
		t.Fatal(err)
	}
	s.await("the larger size", func(o controlplane.Observation) bool {
		return o.State == controlplane.Ready && o.Size.Size == cluster.Medium && o.Size.IsEnforced
	})
	pid, _ = plane.Running(s.runtime.Dir(s.id))
	if memory, _ := limitsOf(t, pid); memory != fmt.Sprint(cluster.Medium.Limits().Memory) {
		t.Errorf("the kernel's limit is %s bytes, want %d", memory, cluster.Medium.Limits().Memory)
	}
	if after, err := s.runtime.Observe(neighbour); err != nil || after.State != controlplane.Ready ||
		after.ReadySince != before.ReadySince {
		t.Errorf("the neighbour: %+v, %v; before %+v", after, err, before)
	}
	s.await("the neighbour's end", func(controlplane.Observation) bool {
		done, err := s.runtime.Discard(neighbour)
		return done && err == nil
	})
	s.discard()
}

// leaveLittleMemory lowers the kernel's limit of a plane to what the plane uses and some MiB: to use up the limit of a
// small plane would take a GiB of this machine.
func leaveLittleMemory(t *testing.T, pid int) {
	t.Helper()
	file := memoryLimitFile(t, pid)
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "RssAnon:")
	text, _, _ := strings.Cut(rest, "kB")
	anonymous, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for spare := int64(64); ; spare += 16 { // version 1 refuses a limit below what it cannot take back
		err := os.WriteFile(file, []byte(strconv.FormatInt(anonymous<<10+spare<<20, 10)), 0o644)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EBUSY) || spare > 512 {
			t.Fatal(err)
		}
	}
}

// fillMemory writes large objects into a plane until stop is closed: etcd and the caches of watches keep them.
func fillMemory(t *testing.T, config *rest.Config, stop <-chan struct{}) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Error(err)
		return
	}
	defer client.CloseIdleConnections()
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"large-"},"data":{"x":%q}}`,
		strings.Repeat("x", 900<<10))
	for {
		select {
		case <-stop:
			return
		default:
		}
		res, err := client.Post(config.Host+"/api/v1/namespaces/default/configmaps", "application/json",
			bytes.NewReader(body))
		if err != nil {
			return // the plane has ended
		}
		res.Body.Close()
	}
}
