package hosting

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/internal/quick"
	"atoll.dev/plane"
)

// warm starts hosting again with so many warm planes and waits until they are ready. It returns their processes.
func (w *world) warm(planes int, run func()) (pids []int) {
	w.Helper()
	w.stop()
	delete(w.planes.Binaries, "1.36.4") // the region's clusters have the newest release
	w.planes.Warm.Planes, w.planes.Warm.Spec = planes, WarmSpec(Releases{"1.36.3"}, apihosting.ServerDomain)
	run()
	if w.planes.Warm.Room != nil {
		planes = min(planes, w.planes.Warm.Room())
	}
	w.awaitWarm(planes)
	dirs, _ := filepath.Glob(filepath.Join(w.planes.Dir, "planes", controlplane.WarmNamespace, "*"))
	for _, dir := range dirs {
		if pid, ok := plane.Running(dir); ok {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (w *world) awaitWarm(planes int) {
	w.Helper()
	w.wait("warm planes", func() error {
		families, err := w.planes.Metrics.(*prometheus.Registry).Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			if f.GetName() == "atoll_hosting_warm_planes" && int(f.GetMetric()[0].GetGauge().GetValue()) == planes {
				return nil
			}
		}
		return errStill
	})
}

// registry gives the next runtime metrics of its own.
func (w *world) registry() { w.planes.Metrics = prometheus.NewRegistry() }

// createSmall creates a HostedCluster as the region does.
func (w *world) createSmall(name string, spec map[string]any) controlplane.ID {
	w.Helper()
	key := controlplane.ID{Namespace: w.prefix + "-" + name, Name: "hc-" + name}
	makeNamespace(w.T, w.admin, key.Namespace)
	w.createSmallAt(key, spec)
	return key
}

// createSmallAt is createSmall in a namespace that exists.
func (w *world) createSmallAt(key controlplane.ID, spec map[string]any) {
	w.Helper()
	if spec == nil {
		spec = map[string]any{}
	}
	spec["release"] = map[string]any{"image": "atoll.dev/release:1.36.3"}
	annotations, _ := spec["annotations"].(map[string]any) // of the HostedCluster
	delete(spec, "annotations")
	hc := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "hypershift.openshift.io/v1beta1", "kind": "HostedCluster", "spec": spec,
		"metadata": map[string]any{"name": key.Name, "annotations": annotations,
			"labels": map[string]any{hypershift.SizeLabel: "small"}},
	}}
	if _, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(key.Namespace).Create(w.Context(), hc,
		metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// A cluster whose owner has chosen nothing gets a warm plane, with its own names everywhere. It upgrades, sleeps and
// ends as any other. A cluster with a network of its own gets a plane that is started for it.
func TestANewClusterGetsAWarmPlane(t *testing.T) {
	w := newWorld(t, "warm")
	pids := w.warm(1, func() { w.registry(); w.start() })
	begun := time.Now()
	key := w.createSmall("default", nil)
	hc, c := w.available(key)
	t.Logf("available after %s", time.Since(begun))
	if pid := w.pid(key); len(pids) != 1 || pid != pids[0] {
		t.Errorf("its process is %d, the warm ones were %v", pid, pids)
	}
	if hc.Status.Version == nil || len(hc.Status.Version.History) != 1 ||
		hc.Status.Version.History[0].State != hypershift.Completed || hc.Status.Size == nil ||
		hc.Status.Size.Class != "small" {
		t.Errorf("its status has the versions %+v and the size %+v", hc.Status.Version, hc.Status.Size)
	}
	if cluster := w.kubeconfig(hc); cluster.TLSServerName != "hc-default.hosted.atoll.internal" {
		t.Errorf("its kubeconfig names %+v", cluster)
	}
	secret, err := w.admin.Resource(secrets()).Namespace(key.Namespace).Get(t.Context(), kubeconfigSecret(key),
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if config, err := clientcmd.Load(secretValue(secret, "kubeconfig")); err != nil || config.CurrentContext != key.Name {
		t.Errorf("the context of its kubeconfig is %q, %v", config.CurrentContext, err)
	}
	w.keep(c, "data")

	w.awaitWarm(1)
	other := w.createSmall("network", map[string]any{"networking": map[string]any{
		"serviceNetwork": []any{map[string]any{"cidr": "172.20.0.0/16"}}}})
	w.available(other)
	if dir := w.dir(other); !strings.HasSuffix(dir, filepath.Join("planes", other.Namespace, other.Name)) {
		t.Errorf("a cluster with a network of its own has a warm plane: %s", dir)
	}

	// The next hosting, which has no warm planes, finds it, and deletes the warm one.
	pid := w.pid(key)
	w.stop()
	w.planes.Warm = process.Warm{}
	w.registry()
	w.start()
	w.wait("the plane", func() error { _, err := w.h.Client(key); return err })
	_, c = w.available(key)
	w.hasConfigMap(c, "data")
	if w.pid(key) != pid {
		t.Errorf("its process %d became %d", pid, w.pid(key))
	}
	dir := w.dir(key)
	w.endWarm()
	w.delete(key)
	w.gone(key, pid)
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is left", dir)
	}
	w.delete(other)
	w.gone(other)
}

// A cluster that is created asleep gets a warm plane, and sleeps when its kubeconfig is there and not before.
func TestAClusterThatIsCreatedAsleepGetsAWarmPlane(t *testing.T) {
	w := newWorld(t, "warmasleep", func(o *Options) { o.Idle = time.Millisecond })
	pids := w.warm(1, func() { w.registry(); w.start() })
	key := w.createSmall("asleep", map[string]any{
		"annotations": map[string]any{hypershift.HibernatedAnnotation: "true"}})
	hc := w.condition(key, hypershift.Available, "True", "Asleep")
	w.wait("the end of its process", func() error {
		if w.runs(pids[0], key) {
			return errStill
		}
		return nil
	})
	if hc.Status.KubeConfig == nil || !strings.Contains(w.dir(key), controlplane.WarmNamespace) {
		t.Errorf("asleep in %s, it has the kubeconfig %+v", w.dir(key), hc.Status.KubeConfig)
	}
	w.stop()
	w.planes.Warm = process.Warm{}
	w.registry()
	w.start()
	w.endWarm()
	w.delete(key)
	w.gone(key)
}

// Warm planes and clusters together do not exceed the capacity of the management cluster: the pool shrinks first, and a
// cluster that gets a warm plane is not counted twice.
func TestWarmPlanesLeaveRoomForClusters(t *testing.T) {
	quick.Slow(t, "fills a management cluster with warm planes")
	w := newWorld(t, "warmroom")
	w.planes.Warm.Room = func() int { return w.h.WarmRoom(map[string]int64{"planes": 2, "memory_mib": 4000}) }
	pids := w.warm(3, func() { w.registry(); w.start() })
	one := w.createSmall("one", nil)
	w.available(one)
	w.awaitWarm(1)
	two := w.createSmall("two", nil)
	w.available(two)
	w.awaitWarm(0)
	for _, key := range []controlplane.ID{one, two} {
		if !slices.Contains(pids, w.pid(key)) {
			t.Errorf("%s has the process %d, the warm ones were %v", key, w.pid(key), pids)
		}
	}
	w.delete(one)
	w.gone(one)
	w.awaitWarm(1)
	w.delete(two)
	w.gone(two)
	w.awaitWarm(2)
	w.stop()
	w.planes.Warm = process.Warm{}
	w.registry()
	w.start()
	w.endWarm()
}

func TestRoomForWarmPlanes(t *testing.T) {
	for name, c := range map[string]struct {
		capacity map[string]int64
		used     int64
		want     int
	}{
		"no capacity is no limit":   {want: math.MaxInt32},
		"an unknown resource":       {capacity: map[string]int64{"gpus": 0}, want: math.MaxInt32},
		"planes":                    {capacity: map[string]int64{"planes": 4}, used: 1, want: 3},
		"memory in units of planes": {capacity: map[string]int64{"planes": 40, "memory_mib": 1400}, used: 3, want: 1},
		"a part of a plane":         {capacity: map[string]int64{"memory_mib": 1399}, used: 3, want: 0},
		"more than there is":        {capacity: map[string]int64{"planes": 4}, used: 6, want: 0},
	} {
		if room := roomFor(c.capacity, c.used); room != c.want {
			t.Errorf("%s: room for %d, want %d", name, room, c.want)
		}
	}
}

// endWarm waits until a hosting without warm planes has deleted those of an earlier one.
func (w *world) endWarm() {
	w.Helper()
	w.wait("the end of the warm planes", func() error {
		if left, _ := filepath.Glob(filepath.Join(w.planes.Dir, "state", controlplane.WarmNamespace, "*")); len(left) > 0 {
			return errStill
		}
		return nil
	})
}

// With backups, a cluster gets a warm plane when the store has said that it has none of the cluster. A cluster that was
// lost is recovered, and gets no warm plane. A plane that was warm is restored in its place.
func TestI1ALostClusterGetsNoWarmPlane(t *testing.T) {
	quick.Slow(t, "recovers a plane beside a pool of warm planes")
	r := newRestoreWorld(t)
	pids := r.warm(1, func() { r.registry(); r.run() })
	key := r.createSmall("lost", nil)
	_, c := r.available(key)
	if pid := r.pid(key); len(pids) != 1 || pid != pids[0] {
		t.Errorf("its process is %d, the warm ones were %v", pid, pids)
	}
	r.keep(c, "before")
	r.stored(key)
	order := hypershift.RestoreOrder{ID: "first", At: time.Now().UTC().Format(time.RFC3339)}
	r.order(key, order)
	r.await(key, "first", hypershift.RestoreCompleted)
	_, c = r.available(key)
	r.hasConfigMap(c, "before")
	r.stored(key)
	r.awaitWarm(1)
	r.lose(key)
	r.registry()
	r.createSmallAt(key, nil)
	r.run()
	_, c = r.available(key)
	r.hasConfigMap(c, "before")
	if dir := r.dir(key); !strings.HasSuffix(dir, filepath.Join("planes", key.Namespace, key.Name)) {
		t.Errorf("a lost cluster has a warm plane: %s", dir)
	}
	r.stop()
	r.planes.Warm = process.Warm{}
	r.registry()
	r.run()
	r.endWarm()
}
