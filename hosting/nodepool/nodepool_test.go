package nodepool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
)

func TestAPoolGrowsShrinksAndIsDeleted(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("a", 2, func(s map[string]any) { s["nodeLabels"] = map[string]any{"tier": "web", simulatedLabel: "no"} })
	w.pool("b", 1, func(s map[string]any) {
		s["platform"] = map[string]any{"type": "AWS", "aws": map[string]any{"instanceType": "r6i.2xlarge",
			"rootVolume": map[string]any{"size": int64(100)}}}
	})
	p := w.ready("a")
	if w.ready("b"); p.Status.Replicas != 2 || p.Status.Version != "1.36.3" {
		t.Errorf("status %+v", p.Status)
	}
	w.await("a", Simulated, "True", "KWOK")
	w.awaitNodes("a", "a-0", "a-1")
	w.awaitNodes("b", "b-0")
	networks := map[string]string{}
	for _, n := range append(w.nodes("a"), w.nodes("b")...) {
		spec, _, _ := unstructured.NestedString(n.Object, "spec", "podCIDR")
		addresses, _, _ := unstructured.NestedSlice(n.Object, "status", "addresses")
		for _, at := range []string{spec, fmt.Sprint(addresses[0])} {
			if other := networks[at]; other != "" {
				t.Errorf("%s and %s both have %s", n.GetName(), other, at)
			}
			networks[at] = n.GetName()
		}
	}
	first := w.nodes("a")[0]
	for key, want := range map[string]string{"tier": "web", simulatedLabel: "true", instanceTypeLabel: "m6a.xlarge",
		"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "a-0"} {
		if got := first.GetLabels()[key]; got != want {
			t.Errorf("label %s is %q, want %q", key, got, want)
		}
	}
	capacity, _, _ := unstructured.NestedStringMap(w.nodes("b")[0].Object, "status", "capacity")
	if want := map[string]string{"cpu": "8", "memory": "64Gi", "pods": "250",
		"ephemeral-storage": "100Gi"}; !maps.Equal(capacity, want) {
		t.Errorf("capacity %v, want %v", capacity, want)
	}

	w.deploy("a", 6)
	w.awaitPods(6, "a-0", "a-1")
	w.change("a", map[string]any{"replicas": 3})
	w.ready("a")
	w.awaitNodes("a", "a-0", "a-1", "a-2")
	w.change("a", map[string]any{"replicas": 1})
	if p := w.ready("a"); p.Status.Replicas != 1 {
		t.Errorf("ready with %d replicas", p.Status.Replicas)
	}
	w.awaitNodes("a", "a-0")
	w.awaitPods(6, "a-0")
	w.delete("a")
	w.gone("a")
	w.awaitNodes("a")
	w.awaitNodes("b", "b-0")
	w.delete("b")
	w.gone("b")
}

// A node waits for pods with a disruption budget as long as the pool allows.
func TestADrainWaitsForDisruptionBudgetsUntilItsTimeIsOver(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("d", 1, nil)
	w.ready("d")
	w.deploy("d", 1)
	w.awaitPods(1, "d-0")
	w.mc.Create(schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, w.namespace,
		map[string]any{
			"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{"name": "d"},
			"spec": map[string]any{"minAvailable": int64(1), "selector": map[string]any{"matchLabels": map[string]any{
				"app": "d"}}},
		})
	w.change("d", map[string]any{"replicas": 0})
	w.await("d", hypershift.Ready, "False", ScalingDown)
	if cordoned, _, _ := unstructured.NestedBool(w.nodes("d")[0].Object, "spec", "unschedulable"); !cordoned {
		t.Error("a node that is drained takes pods")
	}
	w.awaitPods(1, "d-0")
	w.change("d", map[string]any{"nodeDrainTimeout": "1s"})
	w.ready("d")
	w.awaitNodes("d")
}

func TestANewVersionAndANewMachineTypeAreRolledOut(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("v", 2, func(s map[string]any) { s["release"] = map[string]any{"image": "atoll.dev/release:1.36.2"} })
	if p := w.ready("v"); p.Status.Version != "1.36.2" {
		t.Errorf("version %s", p.Status.Version)
	}
	w.deploy("v", 4)
	w.awaitPods(4, "v-0", "v-1")
	w.change("v", map[string]any{
		"release": map[string]any{"image": "atoll.dev/release:1.36.3"}, "platform": map[string]any{
			"aws": map[string]any{"instanceType": "m5.large"}},
	})
	p := w.ready("v")
	if p.Status.Version != "1.36.3" || p.Status.Replicas != 2 {
		t.Errorf("status %+v", p.Status)
	}
	var names []string
	for _, n := range w.nodes("v") {
		names = append(names, n.GetName())
		version, _, _ := unstructured.NestedString(n.Object, "status", "nodeInfo", "kubeletVersion")
		if version != "v1.36.3" || n.GetLabels()[instanceTypeLabel] != "m5.large" {
			t.Errorf("%s has version %s on %s", n.GetName(), version, n.GetLabels()[instanceTypeLabel])
		}
	}
	w.awaitPods(4, names...)

	w.change("v", map[string]any{"platform": map[string]any{"aws": map[string]any{"instanceType": "m9.gigantic"}}})
	w.await("v", ValidPlatformConfig, "False", ValidationFailed)
	w.await("v", hypershift.Ready, "False", ValidationFailed)
	w.change("v", map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.37.0"},
		"platform": map[string]any{"aws": map[string]any{"instanceType": "m5.large"}}})
	w.await("v", hypershift.ValidReleaseImage, "False", ValidationFailed)
	w.awaitNodes("v", names...)
	w.delete("v") // also when nothing about it is right
	w.gone("v")
	w.awaitNodes("v")
}

func TestNodesAreRepaired(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("r", 2, nil)
	w.ready("r")
	old := w.nodes("r")
	if err := w.admin.Resource(nodeResource()).Delete(t.Context(), "r-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.patch(nodeResource(), "", "r-1", map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		"kwok.x-k8s.io/node": nil}}})
	w.patch(nodeResource(), "", "r-1", map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "False", "reason": "Broken", "lastTransitionTime": time.Now().Add(
			-time.Hour).UTC().Format(time.RFC3339)},
	}}}, "status")
	w.eventually("two other nodes that are ready", func() error {
		nodes := w.nodes("r")
		if len(nodes) != 2 || nodes[0].GetUID() == old[0].GetUID() || nodes[1].GetUID() == old[1].GetUID() {
			return errors.New("not yet")
		}
		return nil
	})
	w.ready("r")
	w.change("r", map[string]any{"nodeLabels": map[string]any{"a": "1", "b": "2"},
		"taints": []any{map[string]any{"key": "only", "value": "x", "effect": "NoSchedule"}}})
	w.awaitLabels("r-0", map[string]string{"a": "1", "b": "2"}, "only")
	w.change("r", map[string]any{"nodeLabels": map[string]any{"a": "3", "b": nil}, "taints": nil})
	w.awaitLabels("r-0", map[string]string{"a": "3", "b": ""}, "")
	w.delete("r")
	w.gone("r")
}

// awaitLabels waits until a node has the labels, lacks those with the value "", and has a taint of
// the key, or none.
func (w *world) awaitLabels(name string, want map[string]string, taintKey string) {
	w.t.Helper()
	w.eventually("labels and taints of "+name, func() error {
		n, err := w.admin.Resource(nodeResource()).Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for key, value := range want {
			if n.GetLabels()[key] != value {
				return fmt.Errorf("%s is %q", key, n.GetLabels()[key])
			}
		}
		taints, _, _ := unstructured.NestedSlice(n.Object, "spec", "taints")
		if taintKey == "" && len(taints) == 0 {
			return nil
		}
		for _, x := range taints {
			if x.(map[string]any)["key"] == taintKey {
				return nil
			}
		}
		return fmt.Errorf("taints %v", taints)
	})
}

// No order wakes a sleeping plane; when it wakes, its nodes converge to the order.
func TestI9PoolsOfASleepingPlaneConverge(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("s", 1, nil)
	w.pool("x", 2, nil)
	w.ready("s")
	w.ready("x")
	w.sleep()
	w.await("s", hypershift.Ready, "True", Asleep)
	w.change("s", map[string]any{"replicas": 2})
	w.await("s", hypershift.Ready, "False", Asleep)
	w.delete("x")
	w.gone("x")
	w.awaitNodes("s", "s-0")
	w.awaitNodes("x", "x-0", "x-1")
	w.wake()
	w.ready("s")
	w.awaitNodes("s", "s-0", "s-1")
	w.awaitNodes("x")

	// The cluster's end is the pools' end, with nothing to drain.
	w.sleep()
	if err := w.admin.Resource(hypershift.HostedClusters()).Namespace(w.namespace).Delete(t.Context(), w.cluster,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.delete("s")
	w.gone("s")
}

// Nothing in a customer's cluster blocks the deletion of a pool, for which the deletion of the
// cluster waits: pods that must not be evicted, a plane that does not start, one that refuses, a
// malformed pool.
func TestI9APoolIsDeletedWhateverItsPlaneAnswers(t *testing.T) {
	w := newWorld(t, Options{Patience: 300 * time.Millisecond})
	w.pool("e", 1, nil)
	w.ready("e")
	w.deploy("e", 1)
	w.awaitPods(1, "e-0")
	w.mc.Create(schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, w.namespace,
		map[string]any{
			"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{"name": "e"},
			"spec": map[string]any{"minAvailable": int64(1), "selector": map[string]any{"matchLabels": map[string]any{
				"app": "e"}}},
		})
	w.delete("e")
	w.gone("e")
	w.awaitNodes("e")

	w.pool("f", 1, nil)
	w.ready("f")
	w.planes.stop()
	w.patch(hypershift.HostedClusters(), w.namespace, w.cluster,
		map[string]any{"status": map[string]any{"power": "Waking"}}, "status")
	w.delete("f")
	w.gone("f")
	w.awaitNodes("f", "f-0")
	w.planes.serve()
	w.awaitNodes("f")

	w.pool("g", 1, nil)
	w.ready("g")
	w.change("g", map[string]any{"nodeDrainTimeout": "soon"})
	w.delete("g")
	w.gone("g")
	w.awaitNodes("g")

	w.pool("h", 1, nil)
	w.ready("h")
	webhooks := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: "validatingwebhookconfigurations"}
	w.mc.Create(webhooks, "", map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
		"metadata": map[string]any{"name": w.cluster},
		"webhooks": []any{map[string]any{
			"name": "nobody.example.org", "clientConfig": map[string]any{"url": "https://127.0.0.1:1"},
			"failurePolicy": "Fail", "sideEffects": "None",
			"admissionReviewVersions": []any{"v1"}, "objectSelector": map[string]any{"matchLabels": map[string]any{
				hypershift.NodePoolLabel: w.cluster + "-h"}},
			"rules": []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "resources": []any{
				"nodes"}, "operations": []any{"UPDATE", "DELETE"}}},
		}},
	})
	open := func() {
		_ = w.admin.Resource(webhooks).Delete(context.WithoutCancel(t.Context()), w.cluster, metav1.DeleteOptions{})
	}
	t.Cleanup(open)
	w.eventually("the webhook", func() error {
		patch := []byte(`{"metadata":{"annotations":{"touched":"yes"}}}`)
		if _, err := w.admin.Resource(nodeResource()).Patch(t.Context(), "h-0", types.MergePatchType, patch,
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return nil
		}
		return errors.New("it lets everybody through")
	})
	w.delete("h")
	w.gone("h")
	w.awaitNodes("h", "h-0")
	open()
	w.awaitNodes("h")
}

func TestAPausedPoolIsNotReconciled(t *testing.T) {
	w := newWorld(t, Options{})
	w.pool("p", 1, nil)
	w.ready("p")
	w.change("p", map[string]any{"pausedUntil": "true", "replicas": 3})
	w.await("p", hypershift.ReconciliationActive, "False", Paused)
	w.awaitNodes("p", "p-0")
	w.change("p", map[string]any{"pausedUntil": nil})
	w.ready("p")
	w.awaitNodes("p", "p-0", "p-1", "p-2")
	w.delete("p")
	w.gone("p")
}

// A pool above the size of its cluster's network reports why it has too few nodes. Draining nodes
// are removed all the same, which frees their networks.
func TestAFullNetworkIsReported(t *testing.T) {
	w := newWorld(t, Options{})
	w.patch(hypershift.HostedClusters(), w.namespace, w.cluster, map[string]any{"spec": map[string]any{
		"networking": map[string]any{"clusterNetwork": []any{map[string]any{"cidr": "10.132.0.0/22", "hostPrefix": 23}}},
	}})
	w.pool("p", 2, nil)
	w.ready("p")
	w.change("p", map[string]any{"replicas": 3})
	w.await("p", hypershift.AllMachinesReady, "False", NetworkFull)
	p := w.await("p", hypershift.Ready, "False", NetworkFull)
	want := "the cluster's network of pods 10.132.0.0/22 has no room for another node"
	for _, c := range p.Status.Conditions {
		if c.Reason == NetworkFull && c.Message != want {
			t.Errorf("%s: %q, want %q", c.Type, c.Message, want)
		}
	}
	w.patch(nodeResource(), "", w.nodes("p")[1].GetName(), map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{drainingAnnotation: "2026-11-22T12:00:00Z"}},
		"spec":     map[string]any{"unschedulable": true},
	})
	w.change("p", map[string]any{"replicas": 2})
	w.ready("p")
	w.delete("p")
	w.gone("p")
}
