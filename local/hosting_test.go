package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"atoll.dev/cluster"
)

// hostingWithPlanes is a process that starts two others, as hosting does: they
// outlive it and have its mark with their names appended.
func hostingWithPlanes(mc cluster.ManagementCluster) Spec {
	s := sleepingProcess(hostingName(mc))
	s.Phase = phaseEdges
	s.Args = []string{"sh", "-c", `for hc in hc-1 hc-2; do
		if [ ! -e "$0/$hc" ]; then
			touch "$0/$hc"
			ATOLL_PROCESS=$ATOLL_PROCESS/clusters-$hc/$hc setsid sleep 300 &
		fi
	done; exec sleep 300`}
	return s
}

func TestI12PlanesOutliveHostingAndEndWithTheRegion(t *testing.T) {
	h, st := newHome(t)
	spec := hostingWithPlanes("management-01")
	spec.Args = append(spec.Args, t.TempDir())
	var specs atomic.Pointer[[]Spec]
	specs.Store(&[]Spec{spec, sleepingProcess("b")})
	_, stop := supervise(t, h, st, func() []Spec { return *specs.Load() })
	planes := func() (pids []int) {
		for _, p := range h.planes(st.ID) {
			if p.ManagementCluster != "management-01" || p.Namespace != "clusters-"+p.HostedCluster {
				t.Errorf("%+v", p)
			}
			pids = append(pids, p.PID)
		}
		return pids
	}
	eventually(t, "they run", func() bool { return len(planes()) == 2 })
	before := planes()
	for _, p := range h.planes(st.ID) {
		if p.RSSBytes == 0 || p.PSSBytes == 0 {
			t.Errorf("without memory: %+v", p)
		}
	}
	hosting, _ := running(h, "management-01-hosting")
	same := func(when string) {
		t.Helper()
		if now := planes(); !slices.Equal(now, before) {
			t.Fatalf("%s: planes %v, before %v", when, now, before)
		}
	}

	syscall.Kill(hosting.PID, syscall.SIGKILL)
	eventually(t, "hosting runs again", func() bool {
		now, ok := running(h, "management-01-hosting")
		return ok && now.PID != hosting.PID
	})
	same("hosting was killed")
	stop()
	reload, stop := supervise(t, h, st, func() []Spec { return *specs.Load() })
	eventually(t, "the supervisor is back", func() bool { _, ok := running(h, "b"); return ok })
	same("the supervisor was replaced")

	// A management cluster that is removed takes its planes with it.
	specs.Store(&[]Spec{sleepingProcess("b")})
	reload <- syscall.SIGHUP
	eventually(t, "hosting and its planes are gone", func() bool {
		_, ok := running(h, "management-01-hosting")
		return !ok && len(planes()) == 0
	})
	if _, ok := running(h, "b"); !ok {
		t.Error("another process went with them")
	}
	stop()
}

func TestDownStopsHostingFirstAndThenItsPlanes(t *testing.T) {
	h, st := newHome(t)
	spec := hostingWithPlanes("management-01")
	spec.Args = append(spec.Args, t.TempDir())
	r, cmd, err := h.start(st.ID, spec, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	go cmd.Wait()
	if err := writeJSON(h.recordPath(r.Name), r); err != nil {
		t.Fatal(err)
	}
	eventually(t, "they run", func() bool { return len(h.planes(st.ID)) == 2 })
	var order []string
	if err := h.stopAll(t.Context(), st.ID, func(name string) { order = append(order, name) }); err != nil {
		t.Fatal(err)
	}
	if len(order) != 3 || order[0] != "management-01-hosting" || len(markedProcesses(st.ID)) != 0 {
		t.Errorf("stopped %v, left %v", order, markedProcesses(st.ID))
	}
}

// A plane that hosting starts during its stop is found, too, and so are processes with the mark
// that another process leaves.
func TestDownLeavesNoPlaneThatHostingStartedMeanwhile(t *testing.T) {
	h, st := newHome(t)
	spec := Spec{Name: hostingName("management-01"), Phase: phaseEdges, Stop: syscall.SIGTERM,
		Args: []string{"sh", "-c", `trap '
		ATOLL_PROCESS=$ATOLL_PROCESS/clusters-late/hc-late setsid sh -c "touch $0/late; sleep 300; :" &
		while [ ! -e "$0/late" ]; do sleep 0.01; done
		exit 0' TERM
		touch "$0/armed"
		while :; do sleep 0.1; done`, t.TempDir()}}
	r, cmd, err := h.start(st.ID, spec, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	go cmd.Wait()
	dir := spec.Args[len(spec.Args)-1]
	eventually(t, "it runs", func() bool { return exists(filepath.Join(dir, "armed")) })
	if err := writeJSON(h.recordPath(r.Name), r); err != nil {
		t.Fatal(err)
	}
	if err := h.stopAll(t.Context(), st.ID, func(string) {}); err != nil {
		t.Error(err)
	}
	if !exists(filepath.Join(dir, "late")) {
		t.Error("hosting started no plane")
	}
	if left := markedProcesses(st.ID); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestLogsOfCustomersPlanesAreFoundByTheirNames(t *testing.T) {
	h, _ := newHome(t)
	dir := filepath.Join(h.hostingDir("management-01"), "state", "clusters-x", "hc-1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// The process of a plane writes what it likes, at the place that it likes.
	log, err := os.Create(filepath.Join(dir, "plane.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteAt([]byte("\na plane\x1b[2J says\n"), 1<<40); err != nil {
		t.Fatal(err)
	}
	names, err := h.LogNames()
	if err != nil || !slices.Contains(names, "hc-1") {
		t.Errorf("%v, %v", names, err)
	}
	var logged []string
	if err := h.Logs(t.Context(), LogOptions{Processes: []string{"hc-1"}, Tail: 1}, func(p, text string) {
		logged = append(logged, p+" "+text)
	}); err != nil || fmt.Sprint(logged) != "[hc-1 a plane\uFFFD[2J says]" {
		t.Errorf("%v, %v", logged, err)
	}
}

func TestCapacityLeavesRoomForTheRegion(t *testing.T) {
	for memoryMiB, want := range map[int64]int64{24 << 10: 51, 8 << 10: 10, 4 << 10: 1, 1 << 10: 1} {
		if got := capacityShare(memoryMiB, 1); got["planes"] != want || got["memory_mib"] < want*400 ||
			got["memory_mib"] > max(memoryMiB-4<<10, 400) {
			t.Errorf("%d MiB: %v, want %d planes", memoryMiB, got, want)
		}
		if got := capacityShare(memoryMiB, 2); got["planes"] != max(want/2, 1) || got["memory_mib"] > max(
			(memoryMiB-4<<10)/2, 400) {
			t.Errorf("half of %d MiB: %v, want half of %d planes", memoryMiB, got, want)
		}
	}
	if memory, err := machineMemory(); err != nil || memory < 256 {
		t.Errorf("%d MiB, %v", memory, err)
	}
}

// A home of a release without hosting gets the missing ports and keeps its others.
func TestAHomeWithoutHostingGetsHosting(t *testing.T) {
	h, st := newHome(t)
	st.Clusters, st.Created = []cluster.ManagementCluster{"management-01"}, 1
	if err := h.assignPorts(st.Ports, []string{"pki", "mqtt", "management-01-plane",
		"management-01-agent-ops"}); err != nil {
		t.Fatal(err)
	}
	if err := h.saveState(st); err != nil {
		t.Fatal(err)
	}
	now, _, err := h.prepareState(UpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, port := range st.Ports {
		if now.Ports[name] != port {
			t.Errorf("%s moved from %d to %d", name, port, now.Ports[name])
		}
	}
	for _, spec := range newTopology(h, now, Binaries{Atoll: "atoll", Kube: "atoll-kube",
		KubeVersion: "1.36.3"}).specs() {
		for _, port := range spec.Ports {
			if port == 0 {
				t.Errorf("%s listens on no port: %v", spec.Name, spec.Args)
			}
		}
	}
	if err := h.RemoveCluster("management-01"); err != nil {
		t.Fatal(err)
	}
	if now, err = h.State(); err != nil || now.Ports["management-01-router"] != 0 || now.Ports["pki"] == 0 {
		t.Errorf("after the removal of its cluster: %v, %v", now.Ports, err)
	}
}
