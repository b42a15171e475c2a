package nodepool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/process"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

// world is a management cluster with one hosted cluster; one plane is both. Worlds run one after
// another, because each owns all nodes.
type world struct {
	t         *testing.T
	mc        *testworld.Cluster
	admin     dynamic.Interface
	planes    *onePlane
	namespace string
	cluster   string
	options   Options
	stop      func() // ends Run
}

// onePlane is the shared plane as the plane of every HostedCluster. The plane cannot be stopped
// while the test needs it: asleep means that no call may reach it.
type onePlane struct {
	nodes     map[string]int
	config    plane.Config
	namespace string // of the only hosted cluster; others are of tests before

	mu     sync.Mutex
	asleep bool
}

func (p *onePlane) Client(cluster controlplane.ID) (controlplane.Admin, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asleep || cluster.Namespace != p.namespace {
		return controlplane.Admin{}, controlplane.ErrNotServing
	}
	return process.AdminOf(p.config)
}

func (p *onePlane) SetNodes(cluster controlplane.ID, pool string, replicas int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes == nil {
		p.nodes = map[string]int{}
	}
	p.nodes[cluster.Name+"/"+pool] = replicas
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	mc := testworld.SharedCluster(t)
	hostingConfig := mc.AddHosting()
	id := strings.ToLower(rand.Text()[:8]) // tests may be run more than once on one plane
	w := &world{t: t, mc: mc, admin: mc.Objects, planes: &onePlane{config: mc.Plane, namespace: "pools-" + id},
		namespace: "pools-" + id, cluster: "hc-" + id}
	mc.CreateNamespace(w.namespace)
	w.mc.Create(hypershift.HostedClusters(), w.namespace, map[string]any{
		"apiVersion": hypershift.Group + "/" + hypershift.Version, "kind": "HostedCluster", "metadata": map[string]any{
			"name": w.cluster},
		"spec": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"},
			"platform": map[string]any{"type": "AWS"}, "networking": map[string]any{
				"clusterNetwork": []any{map[string]any{"cidr": "10.132.0.0/14"}}, "machineNetwork": []any{
					map[string]any{"cidr": "10.0.0.0/16"}},
			}},
	})
	o.Client, o.Planes = dynamicFor(t, hostingConfig), w.planes
	w.options = o
	w.start()
	return w
}

// start starts Run with the options of the world.
func (w *world) start() {
	w.stop = testsite.Run(w.t, "node pools", func(ctx context.Context) error { return Run(ctx, w.options) })
}

func dynamicFor(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) pool(name string, replicas int, change func(spec map[string]any)) {
	w.t.Helper()
	spec := map[string]any{
		"clusterName": w.cluster, "replicas": int64(replicas), "release": map[string]any{
			"image": "atoll.dev/release:1.36.3"},
		"platform":   map[string]any{"type": "AWS", "aws": map[string]any{"instanceType": "m6a.xlarge"}},
		"management": map[string]any{"upgradeType": "Replace", "autoRepair": true},
	}
	if change != nil {
		change(spec)
	}
	w.mc.Create(hypershift.NodePools(), w.namespace, map[string]any{
		"apiVersion": hypershift.Group + "/" + hypershift.Version, "kind": "NodePool", "metadata": map[string]any{
			"name": w.cluster + "-" + name}, "spec": spec,
	})
}

// change patches the spec of a pool.
func (w *world) change(pool string, spec map[string]any) {
	w.t.Helper()
	w.patch(hypershift.NodePools(), w.namespace, w.cluster+"-"+pool, map[string]any{"spec": spec})
}

func (w *world) patch(resource schema.GroupVersionResource, namespace, name string, patch map[string]any,
	subresources ...string) {
	w.t.Helper()
	text, err := json.Marshal(patch)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.admin.Resource(resource).Namespace(namespace).Patch(w.t.Context(), name, types.MergePatchType, text,
		metav1.PatchOptions{}, subresources...); err != nil {
		w.t.Fatal(err)
	}
}

// await returns the pool when a condition, of its present generation, has a
// status and a reason.
func (w *world) await(pool, condition string, status metav1.ConditionStatus, reason string) *hypershift.NodePool {
	w.t.Helper()
	var p *hypershift.NodePool
	w.eventually(fmt.Sprintf("%s being %s=%s, %s", pool, condition, status, reason), func() error {
		object, err := w.admin.Resource(hypershift.NodePools()).Namespace(w.namespace).Get(w.t.Context(),
			w.cluster+"-"+pool, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p, err = loop.Decode[hypershift.NodePool](object); err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == condition && c.Status == status && c.Reason == reason && c.ObservedGeneration == p.Generation {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", p.Status.Conditions)
	})
	return p
}

func (w *world) ready(pool string) *hypershift.NodePool {
	w.t.Helper()
	return w.await(pool, hypershift.Ready, "True", AsExpected)
}

// nodes are the pool's, by name.
func (w *world) nodes(pool string) []unstructured.Unstructured {
	w.t.Helper()
	list, err := w.admin.Resource(nodeResource()).List(w.t.Context(), metav1.ListOptions{
		LabelSelector: hypershift.NodePoolLabel + "=" + w.cluster + "-" + pool})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// awaitNodes waits until the pool has exactly these nodes.
func (w *world) awaitNodes(pool string, want ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("nodes %q of %s", want, pool), func() error {
		var got []string
		for _, n := range w.nodes(pool) {
			got = append(got, n.GetName())
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("there are %q", got)
		}
		return nil
	})
}

// delete deletes a pool; gone waits for its removal.
func (w *world) delete(pool string) {
	w.t.Helper()
	if err := w.admin.Resource(hypershift.NodePools()).Namespace(w.namespace).Delete(w.t.Context(), w.cluster+"-"+pool,
		metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) gone(pool string) {
	w.t.Helper()
	w.eventually("end of "+pool, func() error {
		_, err := w.admin.Resource(hypershift.NodePools()).Namespace(w.namespace).Get(w.t.Context(), w.cluster+"-"+pool,
			metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.New("still there")
	})
}

func (p *onePlane) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asleep = true
}

func (p *onePlane) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asleep = false
}

// sleep makes the plane unreachable and reports it asleep, as hosting does.
func (w *world) sleep() {
	w.t.Helper()
	w.planes.stop()
	w.reportPower(hypershift.Asleep)
}

// wake makes the plane reachable and reports it awake.
func (w *world) wake() {
	w.t.Helper()
	w.planes.serve()
	w.reportPower(hypershift.Awake)
}

func (w *world) reportPower(power hypershift.Power) {
	w.t.Helper()
	w.patch(hypershift.HostedClusters(), w.namespace, w.cluster,
		map[string]any{"status": map[string]any{"power": power}}, "status")
}

// deploy runs pods in the world's namespace, on a pool's nodes.
func (w *world) deploy(pool string, replicas int) {
	w.t.Helper()
	w.mc.Create(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, w.namespace,
		map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": pool},
			"spec": map[string]any{"replicas": int64(replicas), "selector": map[string]any{
				"matchLabels": map[string]any{"app": pool}}, "template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": pool}},
				"spec": map[string]any{
					"nodeSelector": map[string]any{hypershift.NodePoolLabel: w.cluster + "-" + pool},
					"containers":   []any{map[string]any{"name": "main", "image": "example.org/none"}},
				},
			}},
		})
}

// awaitPods waits until so many pods run, all of them, and on these nodes.
func (w *world) awaitPods(replicas int, nodes ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d pods on %q", replicas, nodes), func() error {
		list, err := w.admin.Resource(podResource()).Namespace(w.namespace).List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		running := 0
		for _, p := range list.Items {
			phase, _, _ := unstructured.NestedString(p.Object, "status", "phase")
			on, _, _ := unstructured.NestedString(p.Object, "spec", "nodeName")
			if phase != "Running" || !slices.Contains(nodes, on) || p.GetDeletionTimestamp() != nil {
				return fmt.Errorf("%s is %s on %q", p.GetName(), phase, on)
			}
			running++
		}
		if running != replicas {
			return fmt.Errorf("%d are there", running)
		}
		return nil
	})
}

func (w *world) eventually(what string, try func() error) {
	w.t.Helper()
	testsite.Eventually(w.t, what, try)
}
