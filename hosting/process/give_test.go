package process_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/cluster"
	"atoll.dev/hosting"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/hosting/runtimetest"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// warmOptions are those of a runtime with so many warm planes.
func warmOptions(dir, binary string, planes int) process.Options {
	const release = "1.36.3"
	return process.Options{Dir: dir, Binaries: map[controlplane.Version]string{release: binary},
		Metrics: prometheus.NewRegistry(), Warm: process.Warm{Planes: planes,
			Spec: hosting.WarmSpec(hosting.Releases{release}, "hosted.atoll.internal")}}
}

// specOf is the spec of a cluster of default shape.
func specOf(id controlplane.ID) controlplane.Spec {
	return controlplane.Spec{Name: id.Name, Release: "1.36.3", ServerNames: []string{id.Name + ".hosted.atoll.internal"},
		ServiceCIDR: cluster.DefaultServiceNetwork, Size: cluster.Small}
}

// countWarm reads the gauge of warm planes; -1 when there is none.
func countWarm(o process.Options) int {
	families, _ := o.Metrics.(*prometheus.Registry).Gather()
	for _, f := range families {
		if f.GetName() == "atoll_hosting_warm_planes" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return -1
}

func awaitWarm(t *testing.T, o process.Options, n int) {
	t.Helper()
	for limit := time.Now().Add(3 * time.Minute); countWarm(o) != n; <-time.After(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d planes are warm, want %d", countWarm(o), n)
		}
	}
}

// warmDirs lists the slots below a directory of a home, "planes" or "state".
func warmDirs(dir, below string) []string {
	dirs, _ := filepath.Glob(filepath.Join(dir, below, controlplane.WarmNamespace, "*"))
	return dirs
}

// endWarm deletes the warm planes of a home, as a runtime without a pool does.
func endWarm(t *testing.T, o process.Options) {
	t.Helper()
	o.Metrics, o.Warm = nil, process.Warm{}
	r, err := process.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	closeRuntime, err := r.Open(ctx, func(controlplane.ID) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); closeRuntime() }()
	for limit := time.Now().Add(time.Minute); len(warmDirs(o.Dir, "state")) > 0; <-time.After(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("a runtime without a pool keeps %v", warmDirs(o.Dir, "state"))
		}
	}
}

// killWarm ends the processes of all slots that a failed test has left.
func killWarm(o process.Options) {
	for _, dir := range warmDirs(o.Dir, "planes") {
		if pid, ok := plane.Running(dir); ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A plane that was warm is as any other: it passes the suite.
func TestAPlaneThatWasWarmPassesTheSuite(t *testing.T) {
	quick.LeavesOut(t, "needs control planes")
	o := suiteOptions(t)
	o.Warm = process.Warm{Planes: 1, Spec: controlplane.Spec{Release: runtimetest.Releases[0],
		ServerNames: []string{"*.example"}, ServiceCIDR: "172.30.0.0/16"}}
	t.Cleanup(func() { killAll(t, o); killWarm(o) })
	withPool := o
	withPool.Metrics = prometheus.NewRegistry()
	r, err := process.New(withPool)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	closeRuntime, err := r.Open(ctx, func(controlplane.ID) {})
	if err != nil {
		t.Fatal(err)
	}
	awaitWarm(t, withPool, 1)
	if list := r.List(); len(list) > 0 {
		t.Errorf("warm planes are listed: %v", list)
	}
	cancel()
	closeRuntime()
	slots := warmDirs(o.Dir, "state")
	var given bool
	runtimetest.Run(t, func(t *testing.T) hosting.Planes {
		o := o
		o.Metrics = prometheus.NewRegistry()
		r, err := process.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return waitingPlanes{r, func() {
			if !given && len(slots) == 1 {
				awaitWarm(t, o, 1)
				given = true
			}
		}}
	})
	if _, err := os.Stat(slots[0]); err == nil {
		t.Error("the suite has not used the warm plane")
	}
	endWarm(t, o)
	if left := warmDirs(o.Dir, "planes"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// waitingPlanes waits for a warm plane before the first order.
type waitingPlanes struct {
	*process.Runtime
	wait func()
}

func (w waitingPlanes) Ensure(id controlplane.ID, spec controlplane.Spec) error {
	w.wait()
	return w.Runtime.Ensure(id, spec)
}

// A cluster's plane that was warm runs in the same process, with the cluster's names, and with the walls, limits and
// user of a plane that was started for the cluster. No two planes have a key in common.
func TestAClusterGetsAWarmPlane(t *testing.T) {
	quick.LeavesOut(t, "needs control planes")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := warmOptions(t.TempDir(), binary, 2)
	t.Cleanup(func() { killAll(t, o); killWarm(o) })
	s := &site{t: t, o: o, id: controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}, changes: make(chan struct{}, 1)}
	s.open()
	awaitWarm(t, o, 2)
	pids := map[string]int{}
	for _, dir := range warmDirs(o.Dir, "planes") {
		pids[dir], _ = plane.Running(dir)
	}
	begun := time.Now()
	if err := s.runtime.Ensure(s.id, specOf(s.id)); err != nil {
		t.Fatal(err)
	}
	ready := s.await("ready", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
	t.Logf("ready after %s", time.Since(begun))
	pid, _ := plane.Running(s.runtime.Dir(s.id))
	if pid == 0 || pids[s.runtime.Dir(s.id)] != pid {
		t.Fatalf("process %d in %s was none of the warm planes %v", pid, s.runtime.Dir(s.id), pids)
	}
	if l := ready.LastStart; l.Release != "1.36.3" || l.ServiceCIDR != cluster.DefaultServiceNetwork || !l.WasReady ||
		l.Served != "1.36.3" || !slices.Equal(l.ServerNames, specOf(s.id).ServerNames) {
		t.Errorf("its last start is %+v", l)
	}
	if list := s.runtime.List(); !slices.Equal(list, []controlplane.ID{s.id}) {
		t.Errorf("the list is %v", list)
	}
	checkShut(t, s, ready, pid)
	first := s.kubeconfig()

	// The next one gets the other plane, or one that was started since, and then no process is that of two planes.
	other := &site{t: t, o: o, id: controlplane.ID{Namespace: "clusters-b", Name: "hc-b"}, changes: s.changes,
		runtime: s.runtime}
	awaitWarm(t, o, 2)
	if err := s.runtime.Ensure(other.id, specOf(other.id)); err != nil {
		t.Fatal(err)
	}
	otherReady := other.await("ready", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
	otherPID, _ := plane.Running(s.runtime.Dir(other.id))
	if otherPID == 0 || otherPID == pid || otherReady.Backend == ready.Backend {
		t.Errorf("the planes are processes %d and %d at %s and %s", pid, otherPID, ready.Backend, otherReady.Backend)
	}
	if second := other.kubeconfig(); bytes.Equal(first, second) {
		t.Error("two planes have one authority")
	}
	for _, file := range []string{"pki/ca.key", "pki/service-account.key", "pki/serving.pem", "pki/admin.pem",
		"pki/front-proxy-ca.key"} {
		one, err := os.ReadFile(filepath.Join(s.runtime.Dir(s.id), file))
		two, otherErr := os.ReadFile(filepath.Join(s.runtime.Dir(other.id), file))
		if err != nil || otherErr != nil || bytes.Equal(one, two) {
			t.Errorf("%s of two planes: %v, %v", file, err, otherErr)
		}
	}

	// After its next start, it has the names of a plane that was started for the cluster.
	stop := s.runtime.Sleep
	if err := stop(s.id); err != nil {
		t.Fatal(err)
	}
	s.await("the end of its process", func(o controlplane.Observation) bool { return !o.Running })
	if err := s.runtime.Ensure(s.id, specOf(s.id)); err != nil {
		t.Fatal(err)
	}
	s.await("ready again", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
	if !bytes.Equal(s.kubeconfig(), first) {
		t.Error("its authority is another one")
	}
	dir := s.runtime.Dir(s.id)
	other.end()
	s.end()
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is left", dir)
	}
	s.close()
	endWarm(t, o)
	if left := append(warmDirs(o.Dir, "planes"), warmDirs(o.Dir, "state")...); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// checkShut checks walls, limits and user of a plane of the small size.
func checkShut(t *testing.T, s *site, o controlplane.Observation, pid int) {
	t.Helper()
	for _, wall := range standingHere(t) {
		if !slices.Contains(o.Walls, wall) {
			t.Errorf("the wall %s does not stand: %v", wall, o.Walls)
		}
	}
	want := cluster.Small.Limits()
	if o.Size.Size != cluster.Small || o.Size.Limits.CPUWeight != want.CPUWeight ||
		o.Size.IsEnforced != hasMemoryControl() {
		t.Errorf("its size is %+v", o.Size)
	}
	if memory, processes := limitsOf(t, pid); hasMemoryControl() &&
		(memory != fmt.Sprint(want.Memory) || processes != fmt.Sprint(want.Processes)) {
		t.Errorf("the kernel's limits are %s bytes and %s processes, want %+v", memory, processes, want)
	}
	if weight := weightOf(t, pid); weight != 0 && weight != want.CPUWeight {
		t.Errorf("the weight of its processors is %d, want %d", weight, want.CPUWeight)
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range []string{"GOMEMLIMIT=805306368", "ATOLL_MAX_REQUESTS=150", "ATOLL_MAX_WATCH_EVENTS=1600"} {
		if !slices.Contains(strings.Split(string(environment), "\x00"), variable) {
			t.Errorf("its environment lacks %s", variable)
		}
	}
	if info, err := os.Stat(s.runtime.Dir(s.id)); err != nil {
		t.Error(err)
	} else if owner := info.Sys().(*syscall.Stat_t).Uid; slices.Contains(o.Walls, plane.WallUser) &&
		int(owner) < plane.FirstUser {
		t.Errorf("its directory belongs to user %d", owner)
	}
}

// weightOf reads the weight of a process's processors from the kernel; 0 where no control group of it is mounted.
func weightOf(t *testing.T, pid int) (weight int) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for file, unit := range map[string]int{"/sys/fs/cgroup" + part[2] + "/cpu.weight": 100,
			"/sys/fs/cgroup/cpu" + part[2] + "/cpu.shares": 1024} {
			value, err := os.ReadFile(file)
			if n, wrong := strconv.Atoi(strings.TrimSpace(string(value))); err == nil && wrong == nil &&
				slices.Contains(append(strings.Split(part[1], ","), part[1]), "cpu") == (unit == 1024) {
				weight = n * 100 / unit
			}
		}
	}
	return weight
}

// kubeconfig checks the names in the administrator's kubeconfig and that the plane serves the cluster's name with its
// own authority, and returns that authority.
func (s *site) kubeconfig() []byte {
	s.t.Helper()
	admin, err := s.runtime.Client(s.id)
	if err != nil {
		s.t.Fatal(err)
	}
	config, err := clientcmd.Load(admin.Kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	name := s.id.Name
	if c := config.Contexts[name]; config.CurrentContext != name || c == nil || c.Cluster != name || c.AuthInfo != name ||
		config.Clusters[name] == nil || config.AuthInfos[name] == nil || len(config.Contexts)+len(config.Clusters) != 2 {
		s.t.Fatalf("the kubeconfig has the context %q of %v", config.CurrentContext, config.Contexts)
	}
	if admin.ServerName != name+".hosted.atoll.internal" {
		s.t.Errorf("its server name is %q", admin.ServerName)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Clusters[name].CertificateAuthorityData)
	o, err := s.runtime.Observe(s.id)
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", o.Backend, &tls.Config{ServerName: admin.ServerName, RootCAs: roots})
	if err != nil {
		s.t.Fatalf("as %s: %v", admin.ServerName, err)
	}
	conn.Close()
	return bytes.TrimSpace(config.Clusters[name].CertificateAuthorityData)
}

// open opens the runtime without an order.
func (s *site) open() {
	s.t.Helper()
	var err error
	if s.runtime, err = process.New(s.o); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	closeRuntime, err := s.runtime.Open(ctx, func(controlplane.ID) {
		select {
		case s.changes <- struct{}{}:
		default:
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.close = func() { cancel(); closeRuntime() }
}

// end deletes the plane; the runtime stays open.
func (s *site) end() {
	s.t.Helper()
	s.await("the plane's end", func(controlplane.Observation) bool {
		done, err := s.runtime.Discard(s.id)
		if err != nil {
			s.t.Error(err)
		}
		return done || err != nil
	})
}
