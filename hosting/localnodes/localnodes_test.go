package localnodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/quick"
	"atoll.dev/node"
	"atoll.dev/node/supervisor"
	"atoll.dev/test/testsite"
)

// TestMain is also the supervisor that the tests start: it has the lock and the status of a real one, and no node.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && slices.Equal(os.Args[1:4], []string{"node", "run", "--config"}) {
		if err := runStandIn(os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runStandIn(file string) error {
	if os.Getenv("ATOLL_PROCESS") != "" {
		return errors.New("the supervisor has the mark of a region's process")
	}
	config, err := node.ReadConfig(file)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	unlock, err := node.Lock(config.Home)
	if err != nil {
		return err
	}
	defer unlock()
	write := func(state node.State) error {
		text := fmt.Sprintf(`{"state": %q, "supervisor": %d}`, state, os.Getpid())
		return atomicfile.Write(node.StatusFile(config.Home), []byte(text), 0o644)
	}
	if err := write(node.Up); err != nil {
		return err
	}
	<-stop
	return write(node.Stopped)
}

// site is the machines of one directory, in a process that can be replaced.
type site struct {
	t    *testing.T
	dir  string
	all  *Machines
	stop func()
}

var testPool = Pool{Cluster: controlplane.ID{Namespace: "clusters-1", Name: "hc-1"}, Name: "hc-1-workers"}

func newSite(t *testing.T) *site {
	t.Setenv("ATOLL_PROCESS", "home/management-01-hosting")
	dir, err := os.MkdirTemp("", "nodes-") // the path of t.TempDir is too long
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir}
	t.Cleanup(func() {
		if s.stop != nil {
			s.stop()
		}
		homes, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, home := range homes {
			if err := node.Stop(context.Background(), home); err != nil {
				t.Error(err)
			}
		}
		_ = os.RemoveAll(dir)
	})
	s.open()
	return s
}

// open begins a new process's work.
func (s *site) open() {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.all, err = New(Options{Dir: s.dir, Atoll: self, Programs: map[controlplane.Version]string{"1.36.3": self}, Most: 2,
		Preflight: func(string) []supervisor.Missing { return nil }, Log: testsite.Log(s.t)})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	closeMachines, err := s.all.Open(ctx, func(Pool) {})
	if err != nil {
		s.t.Fatal(err)
	}
	s.stop = func() { cancel(); closeMachines(); s.stop = nil }
}

func order(t *testing.T, name string) Order {
	return Order{Pool: testPool, UID: types.UID("uid-" + name), Version: "1.36.3", Config: node.Config{
		Name: name, BootstrapToken: "token", APIServer: node.APIServer{Address: "127.0.0.1:6443",
			UnnamedAddress: "127.0.0.1:6443", ServerName: "api.example.org", CA: testCA(t)},
		Network: node.Network{ClusterCIDR: "10.132.0.0/14", ServiceCIDR: "172.31.0.0/16", PodCIDR: "10.132.0.0/23",
			Bridge: "atoll-test", Address: "10.0.0.16/16"},
		Resources: node.Resources{CPU: resource.MustParse("2"), Memory: resource.MustParse("8Gi"), Pods: 110},
	}}
}

// testCA returns a certificate; nothing is signed with it.
func testCA(t *testing.T) string {
	t.Helper()
	cert, _ := testsite.New(t).CertificatePEM("system:test")
	return string(cert)
}

// home returns the home of a machine of testPool.
func (s *site) home(uid types.UID) string {
	return filepath.Join(s.dir, homeName(testPool.Cluster, uid))
}

// running waits until the supervisor of a machine runs, and returns it.
func (s *site) running(uid types.UID, not int) int {
	s.t.Helper()
	pid := 0
	testsite.Eventually(s.t, "the supervisor runs", func() error {
		p, err := node.FindProcess(s.home(uid))
		if err != nil {
			return err
		}
		defer p.Close()
		if pid = p.PID; pid == not {
			return fmt.Errorf("process %d runs still", pid)
		}
		return nil
	})
	return pid
}

func TestASupervisorOutlivesHostingAndIsStartedAgain(t *testing.T) {
	quick.LeavesOut(t, "starts supervisors")
	s := newSite(t)
	o := order(t, "w0")
	if err := s.all.Start(o); err != nil {
		t.Fatal(err)
	}
	pid := s.running(o.UID, 0)
	s.stop()
	s.open()
	if pools := s.all.Pools(); len(pools) != 1 || pools[0] != testPool {
		t.Errorf("the next process finds pools %v", pools)
	}
	if again := s.running(o.UID, 0); again != pid {
		t.Errorf("hosting's restart replaced supervisor %d by %d", pid, again)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pid = s.running(o.UID, pid)

	o.Config.BootstrapToken = ""
	if err := s.all.Start(o); err != nil { // the same order
		t.Fatal(err)
	}
	o.Config.APIServer.UnnamedAddress = "127.0.0.1:7443"
	if err := s.all.Start(o); err != nil {
		t.Fatal(err)
	}
	s.running(o.UID, pid)
	config, err := node.ReadConfig(configFile(s.home(o.UID)))
	if err != nil || config.BootstrapToken != "token" || config.APIServer.UnnamedAddress != "127.0.0.1:7443" {
		t.Errorf("the config has token %q and address %q, error %v", config.BootstrapToken,
			config.APIServer.UnnamedAddress, err)
	}
}

// A supervisor whose start hosting's end interrupted was found by nobody, and stayed.
func TestASupervisorThatIsBeingStartedIsFound(t *testing.T) {
	quick.LeavesOut(t, "starts supervisors")
	s := newSite(t)
	o := order(t, "w0")
	home := s.home(o.UID)
	for range 5 {
		_ = os.Remove(logPath(home))
		if err := s.all.Start(o); err != nil {
			t.Fatal(err)
		}
		testsite.Eventually(t, "the start of the supervisor begins", func() error {
			_, err := os.Stat(logPath(home))
			return err
		})
		s.stop()
		if err := node.Stop(t.Context(), home); err != nil {
			t.Fatal(err)
		}
		if pids := processesOf(home); len(pids) > 0 {
			t.Fatalf("processes %v are left", pids)
		}
		s.open()
	}
}

// processesOf returns the ids of the supervisors of a home, whether or not they have its lock.
func processesOf(home string) (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		if strings.Contains(string(line), configFile(home)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func TestAMachineSleepsWakesAndIsRemoved(t *testing.T) {
	s := newSite(t)
	o := order(t, "w0")
	if err := s.all.Start(o); err != nil {
		t.Fatal(err)
	}
	home := s.home(o.UID)
	pid := s.running(o.UID, 0)
	s.all.Sleep(testPool)
	testsite.Eventually(t, "the supervisor ends", func() error {
		running, err := node.Running(home)
		if running {
			err = errors.New("it runs")
		}
		return err
	})
	if _, err := os.Stat(configFile(home)); err != nil {
		t.Errorf("a sleeping machine lost its home: %v", err)
	}
	s.stop()
	s.open() // the next process started the supervisor
	if m := s.all.all[key{testPool.Cluster, o.UID}]; m == nil || m.goal != asleep {
		t.Errorf("the next process finds %+v", m)
	}
	if err := s.all.Start(o); err != nil {
		t.Fatal(err)
	}
	s.running(o.UID, pid)
	s.all.Remove(testPool, o.UID)
	if err := s.all.Start(o); err != nil { // too late
		t.Fatal(err)
	}
	testsite.Eventually(t, "the machine is gone", func() error {
		if left := s.all.Of(testPool); len(left) > 0 {
			return fmt.Errorf("machines %v", left)
		}
		return nil
	})
	if entries, err := os.ReadDir(s.dir); err != nil || len(entries) > 0 {
		t.Errorf("a removed machine leaves %v, error %v", entries, err)
	}
}

func TestAMachineThatIsNotStartedSaysWhy(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"w0", "w1"} {
		if err := s.all.Start(order(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.all.Start(order(t, "w2")); !errors.Is(err, ErrFull) {
		t.Errorf("the third of two machines: error %v", err)
	}
	s.stop()
	s.all.o.Preflight = func(string) []supervisor.Missing { return []supervisor.Missing{{Part: "runc"}} }
	if _, err := New(Options{Dir: "/" + strings.Repeat("d", maxDir), Programs: s.all.o.Programs}); err == nil ||
		!strings.Contains(err.Error(), "55 bytes") {
		t.Errorf("a long path: error %v", err)
	}
	closeMachines, err := s.all.Open(t.Context(), func(Pool) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeMachines)
	if err := s.all.Start(order(t, "w3")); err == nil || !strings.Contains(err.Error(), "runc") {
		t.Errorf("a machine without runc: error %v", err)
	}
}

// The Nodes of a cluster that was made from the data of another one have the same UIDs. One machine served both.
func TestEachClusterHasItsOwnMachineForAUID(t *testing.T) {
	s := newSite(t)
	first, second := order(t, "w0"), order(t, "w0")
	second.Pool = Pool{Cluster: controlplane.ID{Namespace: "clusters-2", Name: "hc-2"}, Name: "hc-2-workers"}
	second.Config.APIServer.UnnamedAddress, second.Config.BootstrapToken = "127.0.0.1:7443", "second"
	for _, o := range []Order{first, second, first} {
		if err := s.all.Start(o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []Order{first, second} {
		if found := s.all.Of(o.Pool); len(found) != 1 || found[o.UID].Node != "w0" {
			t.Errorf("pool %v has machines %v", o.Pool, found)
		}
		home := filepath.Join(s.dir, homeName(o.Pool.Cluster, o.UID))
		config, err := node.ReadConfig(configFile(home))
		if err != nil || config.BootstrapToken != o.Config.BootstrapToken || config.APIServer.UnnamedAddress !=
			o.Config.APIServer.UnnamedAddress {
			t.Errorf("the machine of pool %v has token %q and address %q, error %v", o.Pool, config.BootstrapToken,
				config.APIServer.UnnamedAddress, err)
		}
	}
	other := first
	other.Pool.Name = "hc-1-others"
	if err := s.all.Start(other); err == nil || !strings.Contains(err.Error(), "hc-1-workers") {
		t.Errorf("the order of another pool of the cluster: error %v", err)
	}
	s.all.Remove(other.Pool, other.UID)
	s.all.Remove(second.Pool, second.UID)
	testsite.Eventually(t, "the machine of the second cluster is gone", func() error {
		if left := s.all.Of(second.Pool); len(left) > 0 {
			return fmt.Errorf("machines %v", left)
		}
		return nil
	})
	if m, ok := s.all.Of(first.Pool)[first.UID]; !ok || m.Removing {
		t.Errorf("the machine of the first cluster: %+v", m)
	}
}

// Hosting deleted each directory that it had not made.
func TestOpenDeletesOnlyWhatHostingHasBegun(t *testing.T) {
	s := newSite(t)
	s.stop()
	kept := filepath.Join(s.dir, "mine", "config.json")
	deleted := filepath.Join(s.dir, "0123abcd"+unfinished, "config.json")
	bare := filepath.Join(s.dir, "0123abcd", "containerd")
	for _, file := range []string{kept, deleted, bare} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.open()
	for _, file := range []string{kept, bare} {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("a file in a directory that hosting has not made: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Dir(deleted)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a home that an earlier process did not finish: error %v", err)
	}
	if left := s.all.Pools(); len(left) > 0 {
		t.Errorf("pools %v", left)
	}
	homes, err := Homes(s.dir, testPool.Cluster.Namespace)
	if err != nil || len(homes) > 0 {
		t.Errorf("homes %v, error %v", homes, err)
	}
}
