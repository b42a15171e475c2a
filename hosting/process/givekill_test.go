package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// giveVariable makes the test program a runtime that gives a cluster a warm plane; its value is a giveOptions.
const giveVariable = "PROCESS_TEST_GIVE"

type giveOptions struct {
	Dir, Binary string
	Clusters    []controlplane.ID
}

func TestMain(m *testing.M) {
	if text := os.Getenv(giveVariable); text != "" {
		if err := give(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(planetest.Main(m))
}

// give opens a runtime with a pool, orders the clusters' planes when it can give each a warm one, and waits to be
// killed.
func give(text string) error {
	var o giveOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	options := warmOptions(o.Dir, o.Binary, len(o.Clusters))
	r, err := process.New(options)
	if err != nil {
		return err
	}
	if _, err := r.Open(context.Background(), func(controlplane.ID) {}); err != nil {
		return err
	}
	for countWarm(options) < len(o.Clusters) {
		<-time.After(time.Millisecond)
	}
	fmt.Println("ready")
	for _, id := range o.Clusters {
		go func() { _ = r.Ensure(id, specOf(id)) }()
	}
	select {}
}

// A runtime that is killed between the rename and the record leaves a plane that is the cluster's: the next one adopts
// its process, with the cluster's names, as the plane of a first start that is not ready yet.
func TestI12AKillAfterTheRenameLeavesTheClustersPlane(t *testing.T) {
	quick.LeavesOut(t, "needs a control plane")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := warmOptions(t.TempDir(), binary, 1)
	t.Cleanup(func() { killAll(t, o); killWarm(o) })
	s := &site{t: t, o: o, id: controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}, changes: make(chan struct{}, 1)}
	s.open()
	awaitWarm(t, o, 1)
	s.close()
	slots := warmDirs(o.Dir, "planes")
	pid, _ := plane.Running(slots[0])
	state := filepath.Join(o.Dir, "state")
	if err := os.MkdirAll(filepath.Join(state, s.id.Namespace), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(warmDirs(o.Dir, "state")[0], filepath.Join(state, s.id.Namespace, s.id.Name)); err != nil {
		t.Fatal(err)
	}
	s.o = warmOptions(o.Dir, binary, 0)
	s.open()
	before, err := s.runtime.Observe(s.id)
	if err != nil || before.LastStart.WasReady || len(before.LastStart.ServerNames) > 0 || before.LastStart.Served != "" {
		t.Errorf("before its order: %+v, %v", before, err)
	}
	if err := s.runtime.Ensure(s.id, specOf(s.id)); err != nil {
		t.Fatal(err)
	}
	ready := s.await("ready", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
	if now, _ := plane.Running(s.runtime.Dir(s.id)); now != pid || !ready.LastStart.WasReady {
		t.Errorf("process %d became %d: %+v", pid, now, ready.LastStart)
	}
	s.kubeconfig()
	s.end()
	s.close()
}

// Runtimes are killed at random instants while they give warm planes to clusters. Each plane is warm or a cluster's
// then, no process is that of two planes, and each cluster gets its plane from the next runtime.
func TestI12KillsWhileClustersGetWarmPlanes(t *testing.T) {
	quick.Slow(t, "kills hosting at each step of many clusters, a minute")
	quick.LeavesOut(t, "needs control planes")
	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	o := warmOptions(t.TempDir(), binary, 2)
	t.Cleanup(func() { killAll(t, o); killWarm(o) })
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	outcomes := map[string]int{}
	for round := range 8 {
		ids := []controlplane.ID{{Namespace: "clusters-a", Name: fmt.Sprint("hc-", round)},
			{Namespace: "clusters-b", Name: fmt.Sprint("hc-", round)}}
		after := time.Duration(random.Int64N(int64(3 * time.Millisecond)))
		killGiver(t, giveOptions{Dir: o.Dir, Binary: binary, Clusters: ids}, after)
		slots := map[string]string{} // owner by slot
		files, _ := filepath.Glob(filepath.Join(o.Dir, "state", "*", "*", "slot"))
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			slot, owner := strings.TrimSpace(string(content)), filepath.Dir(f)
			if other := slots[slot]; other != "" {
				t.Fatalf("round %d: %s and %s have the slot %s", round, other, owner, slot)
			}
			slots[slot] = owner
			outcomes[filepath.Base(filepath.Dir(owner))]++
		}
		for _, dir := range warmDirs(o.Dir, "planes") {
			if slots[filepath.Base(dir)] == "" {
				t.Fatalf("round %d: %s is nobody's", round, dir)
			}
		}
		next := warmOptions(o.Dir, binary, 2)
		var sites []*site
		first := &site{t: t, o: next, id: ids[0], changes: make(chan struct{}, 1)}
		first.open()
		for _, id := range ids {
			s := &site{t: t, o: next, id: id, changes: first.changes, runtime: first.runtime}
			if err := s.runtime.Ensure(id, specOf(id)); err != nil {
				t.Fatal(err)
			}
			sites = append(sites, s)
		}
		pids := map[int]controlplane.ID{}
		for _, s := range sites {
			s.await("ready", func(o controlplane.Observation) bool { return o.State == controlplane.Ready })
			s.kubeconfig()
			pid, ok := plane.Running(s.runtime.Dir(s.id))
			if other, isTaken := pids[pid]; !ok || isTaken {
				t.Fatalf("round %d: process %d is that of %s and %s", round, pid, other, s.id)
			}
			pids[pid] = s.id
		}
		for _, s := range sites {
			s.end()
		}
		first.close()
	}
	t.Logf("slots after the kills, by owner: %v", outcomes)
	endWarm(t, o)
}

// killGiver runs a runtime as a process of its own and kills it a time after it has begun to give warm planes.
func killGiver(t *testing.T, o giveOptions, after time.Duration) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), giveVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the runtime says %q: %v", line, err)
	}
	<-time.After(after)
}
