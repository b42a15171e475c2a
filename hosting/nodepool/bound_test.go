package nodepool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/loop"
	"atoll.dev/test/testsite"
)

// hostileNode is a Node of a quarter of a MiB, as a customer's administrator may create it.
func hostileNode(name string) map[string]any {
	annotations := map[string]any{"note": strings.Repeat("x", 256<<10), appliedAnnotation: strings.Repeat("y", 64<<10)}
	return map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "uid": "u-" + name, "resourceVersion": "7", "annotations": annotations,
			"labels": map[string]any{hypershift.NodePoolLabel: "hc-a-workers", "size": strings.Repeat("z", 63)}},
		"spec": map[string]any{"podCIDR": "10.132.0.0/23", "unschedulable": true, "providerID": "x"},
		"status": map[string]any{"nodeInfo": map[string]any{"kubeletVersion": "v1.36.3", "osImage": "o"},
			"images": []any{strings.Repeat("i", 1<<10)}, "conditions": []any{
				map[string]any{"type": "DiskPressure", "status": "False"},
				map[string]any{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
					"message": strings.Repeat("m", 1<<10)}}},
	}
}

// A plane full of large Nodes costs hosting pages of few Nodes, and of each kept Node what hosting reads.
func TestAHostilePlaneCostsHostingLittle(t *testing.T) {
	const nodes, most = 120, 80
	var pages atomic.Int32
	plane := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("labelSelector") != hypershift.NodePoolLabel {
			t.Errorf("%s asks for Nodes that are not of a node pool", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		if q.Get("watch") != "" {
			for _, name := range []string{"n-new", "n-0"} { // one more, and one that is known
				node := hostileNode(name)
				node["metadata"].(map[string]any)["resourceVersion"] = "9"
				_ = encoder.Encode(map[string]any{"type": "MODIFIED", "object": node})
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		limit, err := strconv.Atoi(q.Get("limit"))
		if err != nil || limit > 20 {
			t.Errorf("%s lists without a small limit", r.URL)
			limit = 20
		}
		pages.Add(1)
		from, _ := strconv.Atoi(q.Get("continue"))
		items := []any{}
		for i := from; i < min(from+limit, nodes); i++ {
			items = append(items, hostileNode(fmt.Sprint("n-", i)))
		}
		metadata := map[string]any{"resourceVersion": "8"}
		if from+limit < nodes {
			metadata["continue"] = strconv.Itoa(from + limit)
		}
		_ = encoder.Encode(map[string]any{"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items})
	}))
	defer plane.Close()
	client, err := dynamic.NewForConfig(&rest.Config{Host: plane.URL})
	if err != nil {
		t.Fatal(err)
	}
	bound := nodesBound()
	if bound.Most != maxNodes {
		t.Errorf("hosting keeps %d nodes", bound.Most)
	}
	bound.Most = most
	updated := make(chan struct{})
	var once sync.Once
	l := loop.New(loop.Options{Client: client, Resource: nodeResource(), Bound: bound,
		Reconcile: func(_ context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
			if key.Name == "n-0" && object.GetResourceVersion() == "9" {
				once.Do(func() { close(updated) })
			}
			return 0, nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-updated // the watch has delivered the new node before
	if n := len(l.Keys()); n != most {
		t.Errorf("%d nodes are kept, want %d", n, most)
	}
	if l.Get(loop.Key{Name: "n-new"}) != nil {
		t.Error("a node beyond the limit is kept")
	}
	if got := pages.Load(); got > most/20+1 {
		t.Errorf("%d pages were read, although %d have all nodes that are kept", got, most/20)
	}
	for _, key := range l.Keys() {
		text, err := l.Get(key).MarshalJSON()
		if err != nil || len(text) > 1<<10 {
			t.Fatalf("a kept node has %d bytes, %v", len(text), err)
		}
	}
	// A page that was just decoded may still be in use.
	testsite.Eventually(t, "the heap is small", func() error {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc > 16<<20 { // the 80 whole nodes have 26 MB as JSON
			return fmt.Errorf("the heap has %d MiB", m.HeapAlloc>>20)
		}
		return nil
	})
}

func TestATrimmedNodeHasAllThatDecisionsRead(t *testing.T) {
	u := &unstructured.Unstructured{Object: hostileNode("n-0")}
	u.SetCreationTimestamp(metav1.Unix(1_800_000_000, 0))
	u.SetAnnotations(map[string]string{appliedAnnotation: `{"labels":{"a":"b"}}`,
		drainingAnnotation: "2026-01-01T00:00:00Z", "other": "x"})
	taints := []any{map[string]any{"key": "k", "value": "v", "effect": "NoSchedule"}}
	if err := unstructured.SetNestedSlice(u.Object, taints, "spec", "taints"); err != nil {
		t.Fatal(err)
	}
	whole, err := loop.Decode[node](u)
	if err != nil {
		t.Fatal(err)
	}
	trimNode(u)
	trimmed, err := loop.Decode[node](u)
	if err != nil {
		t.Fatal(err)
	}
	w := wanted{version: "1.36.3", labels: map[string]string{"c": "d"}}
	if got, want := fmt.Sprint(w.specPatch(trimmed)), fmt.Sprint(w.specPatch(whole)); got != want {
		t.Errorf("the patch of a trimmed node is %s, want %s", got, want)
	}
	for name, same := range map[string]bool{
		"ready": trimmed.isReady() == whole.isReady(), "since": trimmed.readyChangedAt().Equal(whole.readyChangedAt()),
		"draining": trimmed.isDraining() && whole.isDraining(), "current": w.isCurrent(trimmed) == w.isCurrent(whole),
		"uid":      trimmed.Metadata.UID == whole.Metadata.UID,
		"network":  trimmed.Spec.PodCIDR == whole.Spec.PodCIDR,
		"cordoned": trimmed.Spec.Unschedulable && whole.Spec.Unschedulable,
		"taints":   len(trimmed.Spec.Taints) == 1 && trimmed.Spec.Taints[0] == whole.Spec.Taints[0],
	} {
		if !same {
			t.Errorf("%s differs: %+v, want %+v", name, trimmed, whole)
		}
	}
}
