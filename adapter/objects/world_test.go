package objects

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/adapter"
	"atoll.dev/plane/planetest"
)

const patience = 3 * time.Minute

// world is a cluster's administrator and a namespace.
type world struct {
	*testing.T
	config *rest.Config
	admin  dynamic.Interface
	ns     string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	config, err := planetest.Shared(t).Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 1000, 1000
	admin, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, config: config, admin: admin, ns: "n" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	w.create(namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": w.ns}})
	return w
}

func (w *world) create(r schema.GroupVersionResource, ns string, o map[string]any) {
	w.Helper()
	in := dynamic.ResourceInterface(w.admin.Resource(r))
	if ns != "" {
		in = w.admin.Resource(r).Namespace(ns)
	}
	if _, err := in.Create(w.Context(), &unstructured.Unstructured{Object: o}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) transport(name string) *Objects {
	w.Helper()
	o, err := New(Options{Config: w.config, Adapter: name, RecreateWait: patience})
	if err != nil {
		w.Fatal(err)
	}
	return o
}

func (w *world) configMap(name, value string) adapter.Object {
	return adapter.Object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": w.ns},
		"data": map[string]any{"k": value},
	}
}

func (w *world) patch(name, patch string) {
	w.Helper()
	if _, err := w.admin.Resource(configMaps).Namespace(w.ns).Patch(w.Context(), name, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{FieldManager: "other"}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) get(name string) *unstructured.Unstructured {
	w.Helper()
	o, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return o
}

func (w *world) application(name, value string, generation int64) adapter.Application {
	o := w.configMap(name, value)
	o["metadata"].(map[string]any)["annotations"] = map[string]any{annotationGeneration: fmt.Sprint(generation)}
	return adapter.Application{Resource: "thing", Object: o, Generation: generation, Event: adapter.Event{ID: name,
		Kind: "Cluster", Generation: generation}}
}

func value(o adapter.Object) string {
	v, _, _ := unstructured.NestedString(o, "data", "k")
	return v
}
