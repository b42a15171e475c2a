package hosting

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/api/hypershift"
	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane/planetest"
)

// newTarget starts a second management cluster with a hosting of its own, whose planes have the same store of backups.
func (r *restoreWorld) newTarget() *restoreWorld {
	r.Helper()
	admin, err := planetest.Start(r.T).Config.RESTConfig()
	if err != nil {
		r.Fatal(err)
	}
	admin.QPS, admin.Burst = -1, 0
	kubeconfig, err := Bootstrap(r.Context(), admin, BootstrapOptions{})
	if err != nil {
		r.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		r.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0
	target := &restoreWorld{store: r.store, keys: r.keys, world: &world{
		T: r.T, admin: client(r.T, admin), prefix: r.prefix,
		options: Options{Client: client(r.T, config), Advertise: "127.0.0.1:2"},
		planes: process.Options{Dir: filepath.Join(r.T.TempDir(), "hosting"), Binaries: r.planes.Binaries,
			Probes: slowProbes(), FirstPort: 32768 - 1024, LastPort: 32767},
	}}
	target.reap()
	target.run()
	r.Cleanup(func() { target.halt() })
	return target
}

// orderMove gives one side of a move its order.
func (r *restoreWorld) orderMove(key controlplane.ID, o hypershift.MoveOrder) {
	r.Helper()
	r.patch(key, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, hypershift.MoveAnnotation, marshal(r.T, o)))
}

// createArriving creates the HostedCluster of a plane that comes from another management cluster.
func (r *restoreWorld) createArriving(key controlplane.ID, move string) {
	r.Helper()
	makeNamespace(r.T, r.admin, key.Namespace)
	r.createMoving(key, hypershift.MoveOrder{ID: move, Role: hypershift.MoveArrives})
}

// createMoving creates a HostedCluster with the order of one side of a move, in a namespace that exists.
func (r *restoreWorld) createMoving(key controlplane.ID, o hypershift.MoveOrder) {
	r.Helper()
	_, err := r.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Create(r.Context(),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster",
			"metadata": map[string]any{"name": key.Name, "annotations": map[string]any{
				hypershift.MoveAnnotation: marshal(r.T, o)}},
			"spec": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
		}}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
}

// movePhase returns the phase of a side of a move; "" before the first.
func (r *restoreWorld) movePhase(key controlplane.ID) hypershift.MovePhase {
	r.Helper()
	if m := r.get(key).Status.Move; m != nil {
		return m.Phase
	}
	return ""
}

// awaitMove waits until a side of a move has the phase.
func (r *restoreWorld) awaitMove(key controlplane.ID, phase hypershift.MovePhase) {
	r.Helper()
	r.wait(fmt.Sprintf("the move of %s to be %s", key, phase), func() error {
		if m := r.get(key).Status.Move; m == nil || m.Phase != phase {
			return fmt.Errorf("%w: %+v", errStill, m)
		}
		return nil
	})
}

// journal has the writes that a plane has acknowledged.
type journal struct {
	mu       sync.Mutex
	versions map[string]int64 // resource versions, by name
	last     int64
	lastAt   time.Time
	pause    time.Duration // the longest time between two acknowledged writes
	failed   int
	backward string
}

func (j *journal) acknowledge(name string, version int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if !j.lastAt.IsZero() {
		j.pause = max(j.pause, now.Sub(j.lastAt))
	}
	if version <= j.last && j.backward == "" {
		j.backward = fmt.Sprintf("%s has version %d after %d", name, version, j.last)
	}
	j.versions[name], j.last, j.lastAt = version, version, now
}

func (j *journal) fail() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed++
}

// write creates a ConfigMap every 10 ms, at the first of the planes that acknowledges it, until ctx ends.
func (j *journal) write(ctx context.Context, clients func() []dynamic.Interface) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		name := fmt.Sprintf("write-%06d", n)
		for _, c := range clients() {
			made, err := c.Resource(configMaps()).Namespace("default").Create(ctx, &unstructured.Unstructured{
				Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}},
				metav1.CreateOptions{})
			if err != nil {
				j.fail()
				continue
			}
			if version, err := strconv.ParseInt(made.GetResourceVersion(), 10, 64); err == nil {
				j.acknowledge(name, version)
			}
			break
		}
	}
}

// planeClient returns a client of a plane without waiting for it; nil when it does not serve.
func (r *restoreWorld) planeClient(key controlplane.ID) dynamic.Interface {
	admin, err := r.runtime.Client(key)
	if err != nil {
		return nil
	}
	config, err := admin.RESTConfig()
	if err != nil {
		return nil
	}
	config.Timeout = 20 * time.Second
	config.Dial = nil
	c, err := dynamic.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		return nil
	}
	return c
}

// A plane moves to another management cluster while 100 objects are created in each second, once undisturbed, and once
// with a restart of the hosting of each side in every phase. Every acknowledged write is there afterwards, with its
// resource version; no version goes back; keys and Secrets are those of before; the source never runs the plane again;
// its deletion leaves the backups, and the plane moves back.
func TestI1AMovedPlaneKeepsEveryAcknowledgedWrite(t *testing.T) {
	for _, disturbed := range []bool{false, true} {
		t.Run(fmt.Sprintf("disturbed=%t", disturbed), func(t *testing.T) {
			source := newRestoreWorld(t)
			target := source.newTarget()
			key := source.create("moved", nil)
			_, c := source.available(key)
			source.keepSecret(c)
			source.stored(key)
			source.order(key, hypershift.RestoreOrder{ID: "failed", At: "2020-01-01T00:00:00Z"})
			failed := source.await(key, "failed", hypershift.RestoreFailed)
			authority := readFile(t, filepath.Join(source.dir(key), "pki", "ca.crt"))
			j := &journal{versions: map[string]int64{}}
			ctx, cancel := context.WithCancel(t.Context())
			var writing, watching sync.WaitGroup
			var mu sync.Mutex
			clients := []dynamic.Interface{c}
			writing.Go(func() {
				j.write(ctx, func() []dynamic.Interface { mu.Lock(); defer mu.Unlock(); return clients })
			})
			defer writing.Wait()
			defer cancel()
			source.wait("writes", func() error {
				j.mu.Lock()
				defer j.mu.Unlock()
				if len(j.versions) < 100 {
					return errStill
				}
				return nil
			})
			begun := time.Now()
			target.createArriving(key, "m1")
			source.orderMove(key, hypershift.MoveOrder{ID: "m1", Role: hypershift.MoveLeaves})
			if disturbed {
				restartInEachPhase(key, source, target)
			}
			watching.Go(func() { // as soon as it serves, the writer finds the plane of the target
				for ctx.Err() == nil {
					if at := target.planeClient(key); at != nil {
						mu.Lock()
						clients = []dynamic.Interface{at}
						mu.Unlock()
						return
					}
					<-time.After(5 * time.Millisecond)
				}
			})
			target.awaitMove(key, hypershift.MoveArrived)
			took := time.Since(begun)
			watching.Wait()
			j.mu.Lock()
			moved := j.last
			j.mu.Unlock()
			source.wait("writes at the target", func() error {
				j.mu.Lock()
				defer j.mu.Unlock()
				if j.last <= moved {
					return errStill
				}
				return nil
			})
			cancel()
			writing.Wait()
			source.awaitMove(key, hypershift.MoveLeft)
			t.Logf("%d acknowledged writes, %d failed, longest pause %s, the move took %s", len(j.versions), j.failed,
				j.pause.Round(time.Millisecond), took.Round(time.Millisecond))
			if j.backward != "" {
				t.Error(j.backward)
			}
			_, c = target.available(key)
			list, err := c.Resource(configMaps()).Namespace("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]int64{}
			for _, o := range list.Items {
				have[o.GetName()], _ = strconv.ParseInt(o.GetResourceVersion(), 10, 64)
			}
			for name, version := range j.versions {
				if have[name] != version {
					t.Errorf("the acknowledged write %s has version %d, want %d", name, have[name], version)
				}
			}
			if _, err := c.Resource(secrets()).Namespace("default").Get(t.Context(), "secret", metav1.GetOptions{}); err != nil {
				t.Errorf("the Secret cannot be read: %v", err)
			}
			// The target has the order, too, and does not execute it again: its status has come with the plane.
			target.order(key, hypershift.RestoreOrder{ID: "failed", At: "2020-01-01T00:00:00Z"})
			if s := target.get(key).Status.Restore; s == nil || cmp.Diff(failed, *s) != "" {
				t.Errorf("the restore that had failed before the move is %+v, want %+v", s, failed)
			}
			if !bytes.Equal(readFile(t, filepath.Join(target.dir(key), "pki", "ca.crt")), authority) {
				t.Error("the plane has another authority")
			}

			source.halt()
			source.run()
			source.condition(key, hypershift.Available, "False", "MovedAway")
			if o := source.observe(key); o.Running {
				t.Errorf("the source runs the plane: %+v", o)
			}
			if backend, err := source.h.WakeServer(t.Context(), serverName(source.get(key))); err != nil ||
				backend != "127.0.0.1:2" {
				t.Errorf("the router of the source sends connections to %q, %v", backend, err)
			}
			target.stored(key)
			source.delete(key)
			source.gone(key)
			if exists, err := source.records().Exists(t.Context(), backup.Plane(key)); !exists || err != nil {
				t.Errorf("after the deletion on the source the backup: %v, %v", exists, err)
			}
			if disturbed {
				return
			}
			// It moves back.
			target.orderMove(key, hypershift.MoveOrder{ID: "m2", Role: hypershift.MoveLeaves})
			_, err = source.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Create(t.Context(),
				&unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster",
					"metadata": map[string]any{"name": key.Name, "annotations": map[string]any{
						hypershift.MoveAnnotation: `{"id":"m2","role":"arrives"}`}},
					"spec": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"}},
				}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			source.awaitMove(key, hypershift.MoveArrived)
			_, c = source.available(key)
			if _, err := c.Resource(configMaps()).Namespace("default").Get(t.Context(), "write-000000",
				metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A target asks for a plane and is lost then. The order is withdrawn after the plane has left: the plane comes back
// with its data, also after a restart of hosting, and moves by another order to another target.
func TestI1AWithdrawnMoveBringsThePlaneBack(t *testing.T) {
	quick.Slow(t, "moves a plane and withdraws the move")
	source := newRestoreWorld(t)
	key := source.create("withdrawn", nil)
	_, c := source.available(key)
	source.keepSecret(c)
	source.stored(key)
	if err := backup.PutHandoverRequest(t.Context(), source.store, source.keys, backup.Plane(key), "m1",
		backup.HandoverRequest{Endpoint: "127.0.0.1:3"}); err != nil {
		t.Fatal(err)
	}
	source.orderMove(key, hypershift.MoveOrder{ID: "m1", Role: hypershift.MoveLeaves})
	source.awaitMove(key, hypershift.MoveLeft)
	source.halt()
	source.patch(key, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, hypershift.MoveAnnotation))
	source.run()
	source.awaitMove(key, hypershift.MoveWithdrawn)
	source.halt()
	source.run()
	_, c = source.available(key)
	if _, err := c.Resource(secrets()).Namespace("default").Get(t.Context(), "secret", metav1.GetOptions{}); err != nil {
		t.Errorf("the Secret cannot be read: %v", err)
	}

	target := source.newTarget()
	target.createArriving(key, "m2")
	source.orderMove(key, hypershift.MoveOrder{ID: "m2", Role: hypershift.MoveLeaves})
	target.awaitMove(key, hypershift.MoveArrived)
	source.awaitMove(key, hypershift.MoveLeft)
	source.patch(key, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, hypershift.MoveAnnotation))
	source.condition(key, hypershift.Available, "False", "MovedAway")
	_, c = target.available(key)
	if _, err := c.Resource(secrets()).Namespace("default").Get(t.Context(), "secret", metav1.GetOptions{}); err != nil {
		t.Errorf("the Secret cannot be read at the target: %v", err)
	}
	if o := source.observe(key); o.Running {
		t.Errorf("both management clusters run the plane: %+v", o)
	}
}

// restartInEachPhase restarts the hosting of each side once in every phase of a move, until the plane has arrived.
func restartInEachPhase(key controlplane.ID, sides ...*restoreWorld) {
	seen := map[string]bool{}
	sides[0].wait("a restart in each phase", func() error {
		for i, side := range sides {
			phase := side.movePhase(key)
			if at := fmt.Sprint(i, phase); phase != "" && !seen[at] {
				seen[at] = true
				side.halt()
				side.run()
				sides[0].Logf("side %d was restarted while %s", i, phase)
			}
		}
		if !seen["1"+string(hypershift.MoveArrived)] {
			return errStill
		}
		return nil
	})
}
