package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/fleet"
	"atoll.dev/api/hypershift"
	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/test/localtest"
)

// writeLimit bounds one write of the customer.
const writeLimit = 20 * time.Second

// victim is a process that a test kills: a command of atoll, of a management cluster or "" of the region.
type victim struct{ command, management string }

// moveWorld is a region with two management clusters, and a customer's cluster to which somebody writes.
type moveWorld struct {
	r       *localtest.Region
	api     *client.Client
	cluster client.Cluster
	sides   map[string]dynamic.Interface // management clusters, by name
	phases  chan movePhase

	mu           sync.Mutex
	plane        dynamic.Interface // of the customer
	acknowledged []string
	isPaused     bool
}

// movePhase is a phase of a move as a HostedCluster or the fleet shows it for the first time.
type movePhase struct{ Move, Side, Phase string }

func newMoveWorld(t *testing.T) *moveWorld {
	w := &moveWorld{r: localtest.New(t, "--backups", "--management-clusters", "2"), phases: make(chan movePhase, 1000),
		sides: map[string]dynamic.Interface{}}
	w.api = w.r.API()
	made, err := w.api.CreateCluster(t.Context(), platform.ClusterRequest{Name: "moves"})
	if err != nil {
		t.Fatal(err)
	}
	w.cluster = made
	w.awaitReady(t)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	for _, name := range []string{"management-01", "management-02"} {
		c := clientOf(t, []byte(w.r.Atoll("mc", "kubeconfig", name)))
		w.sides[name] = c
		running.Go(func() { w.watchSide(ctx, name, c) })
	}
	running.Go(func() { w.watchFleet(ctx) })
	running.Go(func() { w.write(ctx) })
	w.useCredential(t)
	return w
}

func clientOf(t *testing.T, kubeconfig []byte) dynamic.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watchSide sends each new phase of a move that the HostedCluster of a management cluster shows.
func (w *moveWorld) watchSide(ctx context.Context, side string, c dynamic.Interface) {
	seen := map[movePhase]bool{}
	for ctx.Err() == nil {
		events, err := c.Resource(hypershift.HostedClusters()).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			<-time.After(100 * time.Millisecond)
			continue
		}
		for e := range events.ResultChan() {
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			id, _, _ := unstructured.NestedString(o.Object, "status", "move", "id")
			phase, _, _ := unstructured.NestedString(o.Object, "status", "move", "phase")
			if p := (movePhase{id, side, phase}); id != "" && !seen[p] {
				seen[p] = true
				w.phases <- p
			}
		}
	}
}

// watchFleet sends each new phase of a move that the fleet shows.
func (w *moveWorld) watchFleet(ctx context.Context) {
	seen := map[movePhase]bool{}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if p, err := w.fleetPhase(); err == nil && !seen[p] {
			seen[p] = true
			w.phases <- p
		}
	}
}

// fleetPhase returns the last step of a move in the cluster's history.
func (w *moveWorld) fleetPhase() (p movePhase, err error) {
	cmd := localtest.Command(w.r.Home, "clm", "history", "clusters", w.cluster.ID, "--limit", "200", "-o", "json")
	out, err := cmd.Output()
	if err != nil {
		return p, err
	}
	var records []struct {
		Action string
		Note   struct{ Move, Phase string }
	}
	if err := json.Unmarshal(out, &records); err != nil {
		return p, err
	}
	i := slices.IndexFunc(records, func(r struct {
		Action string
		Note   struct{ Move, Phase string }
	}) bool {
		return r.Action == "move"
	})
	if i < 0 {
		return p, errors.New("there was no move")
	}
	return movePhase{records[i].Note.Move, "fleet", records[i].Note.Phase}, nil
}

// useCredential makes a credential at the present management cluster, with which the customer writes from now on.
func (w *moveWorld) useCredential(t *testing.T) {
	t.Helper()
	made, err := w.api.CreateCredential(t.Context(), client.ClusterID(w.cluster.ID),
		platform.CredentialRequest{ExpirationSeconds: 6 * 3600})
	if err != nil {
		t.Fatal(err)
	}
	c := clientOf(t, []byte(made.Kubeconfig))
	w.mu.Lock()
	w.plane, w.isPaused = c, false
	w.mu.Unlock()
	w.awaitWrite(t)
}

// write writes all the time, and keeps what was acknowledged.
func (w *moveWorld) write(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		c, isPaused := w.plane, w.isPaused
		w.mu.Unlock()
		if c == nil || isPaused {
			continue
		}
		name := "write-" + strconv.Itoa(n)
		attempt, cancel := context.WithTimeout(ctx, writeLimit)
		_, err := c.Resource(configMaps()).Namespace("default").Create(attempt, &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}},
			metav1.CreateOptions{})
		cancel()
		if err == nil {
			w.mu.Lock()
			w.acknowledged = append(w.acknowledged, name)
			w.mu.Unlock()
		}
	}
}

func configMaps() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// pause stops the customer's writes, until useCredential.
func (w *moveWorld) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isPaused = true
}

// awaitWrite waits until the customer's kubeconfig has written once more.
func (w *moveWorld) awaitWrite(t *testing.T) {
	t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.acknowledged)
	}
	before := count()
	localtest.Eventually(t, 3*time.Minute, func() error {
		if count() == before {
			return errors.New("no write is acknowledged")
		}
		return nil
	})
}

func (w *moveWorld) awaitReady(t *testing.T) {
	t.Helper()
	localtest.Eventually(t, 5*time.Minute, func() error {
		c, err := w.api.Cluster(t.Context(), client.ClusterID(w.cluster.ID))
		if err == nil && c.Status.Phase != platform.ClusterPhaseReady {
			err = fmt.Errorf("%+v", c.Status)
		}
		return err
	})
}

// order gives an order of a move, again while CLM does not answer.
func (w *moveWorld) order(t *testing.T, args ...string) fleet.Move {
	t.Helper()
	var p fleet.Placement
	localtest.Eventually(t, 5*time.Minute, func() error {
		out, err := w.r.Try(append([]string{"cluster", "move", "moves", "-o", "json"}, args...)...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &p)
		}
		return err
	})
	if p.Move == nil {
		t.Fatalf("cluster move %v: no move", args)
	}
	return *p.Move
}

// runsOn returns the management clusters with a process of the plane.
func (w *moveWorld) runsOn() (sides []string) {
	for _, p := range localtest.Processes(w.r.Home) {
		if !strings.Contains(p, "atoll-kube") || !strings.Contains(p, w.cluster.ID) {
			continue
		}
		for side := range w.sides {
			if strings.Contains(p, "/"+side+"/") {
				sides = append(sides, side)
			}
		}
	}
	return sides
}

// find returns the processes of a victim; none while it starts again.
func (w *moveWorld) find(v victim) (pids []int) {
	for _, p := range localtest.Processes(w.r.Home) {
		pid, command, _ := strings.Cut(p, " ")
		isIt := strings.Contains(command, "atoll "+v.command+" ") && strings.Contains(command, v.management)
		if number, err := strconv.Atoi(pid); err == nil && isIt {
			pids = append(pids, number)
		}
	}
	return pids
}

// kill ends the processes of victims at once. It returns how many there were.
func (w *moveWorld) kill(t *testing.T, victims []victim) (n int) {
	for _, v := range victims {
		for _, pid := range w.find(v) {
			localtest.Kill(t, pid)
			n++
		}
	}
	return n
}
