package nodepool

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
)

// messages is a log that keeps the nodes of each message.
type messages struct {
	mu    sync.Mutex
	nodes map[string][]string // by the begin of the message
}

func (m *messages) Enabled(context.Context, slog.Level) bool { return true }
func (m *messages) WithAttrs([]slog.Attr) slog.Handler       { return m }
func (m *messages) WithGroup(string) slog.Handler            { return m }
func (m *messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "node" {
			m.nodes[r.Message] = append(m.nodes[r.Message], a.Value.String())
		}
		return true
	})
	return nil
}

// has reports whether a message that begins with a text names a node.
func (m *messages) has(text, node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for message, nodes := range m.nodes {
		for _, n := range nodes {
			if strings.HasPrefix(message, text) && n == node {
				return true
			}
		}
	}
	return false
}

// lose removes the NodePool of a pool from the management cluster, whose hosting does not run, as a restored or young
// API server lacks it: without a deletion that hosting could see.
func (w *world) lose(pool string) {
	w.t.Helper()
	w.patch(hypershift.NodePools(), w.namespace, w.cluster+"-"+pool, map[string]any{"metadata": map[string]any{
		"finalizers": nil}})
	w.delete(pool)
	w.gone(pool)
}

func TestI8ANodePoolThatIsNotFoundDeletesNoNodes(t *testing.T) {
	log := &messages{nodes: map[string][]string{}}
	w := newWorld(t, Options{Log: slog.New(log)})
	w.pool("a", 2, nil)
	w.pool("b", 1, nil)
	w.ready("a")
	w.ready("b")
	w.awaitNodes("a", "a-0", "a-1")
	before := w.nodes("a")
	w.delete("b") // its deletion is seen; the record keeps it
	w.gone("b")
	w.awaitNodes("b")

	w.stop()
	w.lose("a")
	w.start()
	for _, name := range []string{"a-0", "a-1"} {
		w.eventually("the decision about "+name, func() error {
			if !log.has("a node stays", name) {
				return errors.New("there is none")
			}
			return nil
		})
	}
	w.awaitNodes("a", "a-0", "a-1")
	for _, n := range w.nodes("a") {
		if unschedulable, _, _ := unstructured.NestedBool(n.Object, "spec", "unschedulable"); unschedulable {
			t.Errorf("node %s is being drained", n.GetName())
		}
	}

	w.pool("a", 2, nil) // the NodePool comes back, with another UID
	w.ready("a")
	w.eventually("the new NodePool has the nodes", func() error {
		for i, n := range w.nodes("a") {
			if n.GetUID() != before[i].GetUID() {
				t.Fatalf("node %s was made again", n.GetName())
			}
			if n.GetAnnotations()[poolUIDAnnotation] == before[i].GetAnnotations()[poolUIDAnnotation] {
				return errors.New("they have the UID of the lost one")
			}
		}
		return nil
	})

	w.sleep()
	w.await("a", hypershift.Ready, "True", Asleep)
	w.delete("a") // seen while the plane sleeps
	w.gone("a")
	w.awaitNodes("a", "a-0", "a-1")
	w.stop() // the record outlives the process
	w.start()
	w.wake()
	w.awaitNodes("a")
}

// A clone has the Nodes of the cluster whose data it has. They say so themselves, and are removed.
func TestNodesOfAnotherClustersDataAreRemoved(t *testing.T) {
	log := &messages{nodes: map[string][]string{}}
	w := newWorld(t, Options{Log: slog.New(log)})
	w.pool("c", 1, nil)
	w.ready("c")
	foreign := func(name, pool, provider string) {
		w.mc.Create(nodeResource(), "", map[string]any{"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": name, "labels": map[string]any{hypershift.NodePoolLabel: pool,
				simulatedLabel: "true"}},
			"spec": map[string]any{"providerID": provider}})
	}
	foreign("source-0", "source-workers", "atoll-simulated:///clusters-source/source-0")
	foreign("c-7", w.cluster+"-c", "atoll-simulated:///clusters-source/c-7") // its pool has the name of a pool here
	foreign("kept-0", "kept-workers", "atoll-simulated:///"+w.namespace+"/kept-0")
	t.Cleanup(func() {
		_ = w.admin.Resource(nodeResource()).Delete(context.WithoutCancel(t.Context()), "kept-0", metav1.DeleteOptions{})
	})
	w.awaitNodes("c", "c-0")
	w.eventually("only the node of this cluster is left", func() error {
		if _, err := w.admin.Resource(nodeResource()).Get(t.Context(), "source-0", metav1.GetOptions{}); err == nil {
			return errors.New("source-0 is still there")
		}
		if !log.has("a node stays", "kept-0") {
			return errors.New("nothing is decided about kept-0")
		}
		return nil
	})
	if _, err := w.admin.Resource(nodeResource()).Get(t.Context(), "kept-0", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	w.delete("c")
	w.gone("c")
}

func TestARecordOfDeletedPoolsIsReadStrictly(t *testing.T) {
	hc := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "hc"}}}
	if list, err := deletedPools(hc); err != nil || len(list) > 0 {
		t.Errorf("without a record: %v, %v", list, err)
	}
	hc.SetAnnotations(map[string]string{deletedAnnotation: "[{\"name\":\"a\",\"uid\":\"u\"}]"})
	if list, err := deletedPools(hc); err != nil || len(list) != 1 || list[0] != (deletedPool{"a", types.UID("u")}) {
		t.Errorf("a record: %v, %v", list, err)
	}
	hc.SetAnnotations(map[string]string{deletedAnnotation: "all"})
	if _, err := deletedPools(hc); err == nil {
		t.Error("a text that is no record is read")
	}
	for provider, want := range map[string]bool{
		"atoll-local:///clusters-a/a-0": false, "atoll-local:///clusters-b/a-0": true, "": false,
		"aws:///clusters-b/a-0": false, "atoll:///a-0": false,
	} {
		n := &node{}
		n.Spec.ProviderID = provider
		if got := isForeign(n, controlplane.ID{Namespace: "clusters-a", Name: "a"}); got != want {
			t.Errorf("a Node with the provider's id %q is foreign: %t, want %t", provider, got, want)
		}
	}
}
