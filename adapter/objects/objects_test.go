package objects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
	"atoll.dev/plane/planetest"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

func TestKubernetesTransportPassesTheSuite(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Subject {
		w := newWorld(t)
		return transporttest.Subject{
			Transport: w.transport("suite"), Object: w.configMap, Value: value,
			Modify: func(_ testing.TB, name, value string) { w.patch(name, `{"data":{"k":"`+value+`"}}`) },
			Remove: func(t testing.TB, name string) {
				if err := w.admin.Resource(configMaps).Namespace(w.ns).Delete(t.Context(), name,
					metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			},
		}
	})
}

// Fields that the task does not name are others', also in an object that the
// adapter applies again.
func TestFieldsOfOtherWritersStay(t *testing.T) {
	w := newWorld(t)
	o := w.transport("one")
	apply := func(a adapter.Application, want adapter.Operation) {
		t.Helper()
		done, err := o.Apply(t.Context(), a)
		if err != nil || done.Operation != want {
			t.Fatalf("%s (%s), %v; want %s", done.Operation, done.Reason, err, want)
		}
	}
	apply(w.application("a", "1", 1), adapter.Created)
	w.patch("a", `{"data":{"theirs":"x"},"metadata":{"labels":{"theirs":"x"}}}`)
	apply(w.application("a", "1", 1), adapter.Skipped)
	apply(w.application("a", "2", 2), adapter.Updated)
	got := w.get("a")
	if data, _, _ := unstructured.NestedStringMap(got.Object, "data"); data["k"] != "2" || data["theirs"] != "x" ||
		got.GetLabels()["theirs"] != "x" {
		t.Fatalf("data %v, labels %v", data, got.GetLabels())
	}
	if got.GetLabels()[LabelAdapter] != "one" {
		t.Errorf("labels %v", got.GetLabels())
	}
	// A field that the task no longer names is removed, unless another writer set it, too.
	a := w.application("a", "2", 3)
	delete(a.Object, "data")
	apply(a, adapter.Updated)
	if data, _, _ := unstructured.NestedStringMap(w.get("a").Object, "data"); len(data) != 1 || data["theirs"] != "x" {
		t.Errorf("data %v", data)
	}
}

// A new process without state changes no correct object and repairs wrong ones.
func TestANewProcessFindsDrift(t *testing.T) {
	w := newWorld(t)
	if _, err := w.transport("one").Apply(t.Context(), w.application("a", "1", 1)); err != nil {
		t.Fatal(err)
	}
	before := w.get("a").GetResourceVersion()
	done, err := w.transport("one").Apply(t.Context(), w.application("a", "1", 1))
	if err != nil || done.Operation != adapter.Skipped || w.get("a").GetResourceVersion() != before {
		t.Fatalf("%s, %v, version %s, was %s", done.Operation, err, w.get("a").GetResourceVersion(), before)
	}
	w.patch("a", `{"data":{"k":"other"}}`)
	done, err = w.transport("one").Apply(t.Context(), w.application("a", "1", 1))
	if err != nil || done.Operation != adapter.Updated || value(w.get("a").Object) != "1" {
		t.Fatalf("%s, %v, %v", done.Operation, err, w.get("a").Object)
	}
}

// An object under deletion is found as long as its finalizer holds it, and cannot be applied.
func TestAnObjectUnderDeletionExists(t *testing.T) {
	w := newWorld(t)
	o := w.transport("one")
	a := w.application("a", "1", 1)
	if _, err := o.Apply(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	w.patch("a", `{"metadata":{"finalizers":["test.example/hold"]}}`)
	search := adapter.Search{APIVersion: "v1", Kind: "ConfigMap", Namespace: w.ns, Name: "a"}
	found, err := o.Discover(t.Context(), search)
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if err := o.Delete(t.Context(), adapter.Deletion{Object: found[0]}); err != nil {
		t.Fatal(err)
	}
	if found, err = o.Discover(t.Context(), search); err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if _, err := o.Apply(t.Context(), a); !errors.Is(err, adapter.ErrTerminating) {
		t.Fatalf("applied an object that is being deleted: %v", err)
	}
	a.OnlyExisting = true
	if done, err := o.Apply(t.Context(), a); err != nil || done.Operation != adapter.Skipped {
		t.Fatalf("%v, %v", done, err)
	}
	reported := make(chan adapter.Event, 100)
	w.watch(o, reported)
	limit := time.After(patience)
	select {
	case <-reported: // the first listing has the object, so the watch behind it shows its end
	case <-limit:
		t.Fatal("the watch did not report the object that it found")
	}
	w.patch("a", `{"metadata":{"finalizers":null}}`)
	for {
		select {
		case e := <-reported:
			if found, err = o.Discover(t.Context(), search); err != nil {
				t.Fatal(err)
			}
			if e == a.Event && len(found) == 0 {
				return
			}
		case <-limit:
			t.Fatal("the watcher did not report the deletion")
		}
	}
}

// The transport does not touch a namespace under deletion and its objects until the namespace is
// removed.
func TestATerminatingNamespaceIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	o := w.transport("one")
	namespace := func(g int64) adapter.Application {
		meta := map[string]any{"name": w.ns + "-t", "annotations": map[string]any{annotationGeneration: fmt.Sprint(g)}}
		return adapter.Application{Resource: "ns", Object: adapter.Object{"apiVersion": "v1", "kind": "Namespace",
			"metadata": meta}, Generation: g, Event: adapter.Event{ID: "ns"}}
	}
	if _, err := o.Apply(t.Context(), namespace(1)); err != nil {
		t.Fatal(err)
	}
	inside := w.application("a", "1", 1)
	inside.Object["metadata"].(map[string]any)["namespace"] = w.ns + "-t"
	if _, err := o.Apply(t.Context(), inside); err != nil {
		t.Fatal(err)
	}
	all := w.admin.Resource(configMaps).Namespace(w.ns + "-t")
	hold := []byte(`{"metadata":{"finalizers":["test.example/hold"]}}`)
	if _, err := all.Patch(t.Context(), "a", types.MergePatchType, hold, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	namespaces := w.admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if err := namespaces.Delete(t.Context(), w.ns+"-t", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	another := w.application("b", "1", 1)
	another.Object["metadata"].(map[string]any)["namespace"] = w.ns + "-t"
	for _, a := range []adapter.Application{namespace(2), another} {
		if done, err := o.Apply(t.Context(), a); !errors.Is(err, adapter.ErrTerminating) {
			t.Errorf("%s: %v, %v", a.Resource, done, err)
		}
	}
	if _, err := all.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// The transport still assigns an object to its resource if it lost the annotation while no watch
// was open.
func TestAListRemembersTheResourceOfAnObject(t *testing.T) {
	w := newWorld(t)
	a := w.application("a", "1", 1)
	if _, err := w.transport("one").Apply(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	var reported []adapter.Event
	o := w.transport("one")
	f := &follower{
		objects: o, gvk: configMaps.GroupVersion().WithKind("ConfigMap"), changed: func(e adapter.Event) bool {
			reported = append(reported, e)
			return true
		},
		known: map[place]known{},
	}
	list := func() {
		t.Helper()
		in, before := o.dynamic.Resource(configMaps).Namespace(w.ns), len(reported)
		if _, err := f.list(t.Context(), in, kindOf{configMaps, true}, LabelAdapter+"=one"); err != nil {
			t.Fatal(err)
		}
		// The time for further reports, which are wrong, begins with the first. A first list reports by the paced
		// queue, a later list at once.
		calmly, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		endSoon := func() { time.AfterFunc(200*time.Millisecond, cancel) }
		if len(reported) > before {
			endSoon()
		}
		o.paced.Run(calmly, func(e adapter.Event) bool {
			endSoon()
			return f.changed(e)
		})
	}
	list()
	if len(reported) != 1 || reported[0] != a.Event {
		t.Fatalf("the watcher reported %v", reported)
	}
	w.patch("a", `{"metadata":{"annotations":{"`+annotationEvent+`":null}}}`)
	list()
	if len(reported) != 2 || reported[1] != a.Event {
		t.Fatalf("the watcher reported %v", reported)
	}
}

// watch runs the transport's watch until the test ends.
func (w *world) watch(o *Objects, reported chan<- adapter.Event) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := o.Watch(ctx, func(e adapter.Event) bool { reported <- e; return true }); !errors.Is(
			err, context.Canceled) {
			w.Errorf("watch: %v", err)
		}
	})
	w.Cleanup(func() { cancel(); done.Wait() })
}

// A deletion names one instance, not a name.
func TestAnotherInstanceIsNotDeleted(t *testing.T) {
	w := newWorld(t)
	o := w.transport("one")
	first, err := o.Apply(t.Context(), w.application("a", "1", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.admin.Resource(configMaps).Namespace(w.ns).Delete(t.Context(), "a",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(configMaps, w.ns, w.configMap("a", "theirs"))
	if err := o.Delete(t.Context(), adapter.Deletion{Object: first.Object}); !apierrors.IsConflict(err) {
		t.Errorf("%v, want a conflict", err)
	}
	if value(w.get("a").Object) != "theirs" {
		t.Error("it is another")
	}
}

// A kind that the server does not serve has no objects; a kind whose discovery fails is an error.
func TestUnservedKindsHaveNoObjects(t *testing.T) {
	w := newWorld(t)
	o := w.transport("one")
	for _, version := range []string{"no.example/v1", "v1"} {
		if found, err := o.Discover(t.Context(), adapter.Search{APIVersion: version, Kind: "Thing",
			Name: "a"}); err != nil || len(found) > 0 {
			t.Errorf("%s: %v, %v", version, found, err)
		}
	}
	a := w.application("a", "1", 1)
	a.Object["kind"] = "Thing"
	if _, err := o.Apply(t.Context(), a); !errors.Is(err, errNoSuchKind) {
		t.Errorf("%v", err)
	}
	a = w.application("a", "1", 1)
	a.Object["metadata"].(map[string]any)["namespace"] = "absent"
	if _, err := o.Apply(t.Context(), a); !apierrors.IsNotFound(err) || len(o.applied) > 0 {
		t.Errorf("%v; remembered: %v", err, o.applied)
	}
	away := rest.CopyConfig(w.config)
	away.Host = "https://127.0.0.1:1"
	gone, err := New(Options{Config: away, Adapter: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Discover(t.Context(), adapter.Search{APIVersion: "v1", Kind: "ConfigMap",
		Name: "a"}); err == nil {
		t.Error("no error of a server that is not there")
	}
	if err := gone.Ready(t.Context()); err == nil {
		t.Error("ready")
	}
}

// An object with a changed immutable field is created again if the task says so; otherwise it is an
// error.
func TestAnImmutableFieldRequiresRecreation(t *testing.T) {
	w := newWorld(t)
	o := w.transport("one")
	immutable := func(value string, generation int64) adapter.Application {
		a := w.application("a", value, generation)
		a.Object["immutable"] = true
		return a
	}
	if _, err := o.Apply(t.Context(), immutable("1", 1)); err != nil {
		t.Fatal(err)
	}
	change := immutable("2", 2)
	if _, err := o.Apply(t.Context(), change); !apierrors.IsInvalid(err) {
		t.Fatalf("%v, want that it is invalid", err)
	}
	change.Recreate = true
	before := w.get("a").GetUID()
	done, err := o.Apply(t.Context(), change)
	if err != nil || done.Operation != adapter.Recreated {
		t.Fatalf("%s, %v", done.Operation, err)
	}
	if now := w.get("a"); now.GetUID() == before || value(now.Object) != "2" {
		t.Errorf("%v", now.Object)
	}
}

// The error of a refused Secret comes into the adapter's report and log. The API server's own text quotes the value.
func TestI11TheErrorOfARefusedSecretQuotesNoValue(t *testing.T) {
	w := newWorld(t)
	const number = "4711471147114711"
	object := func(kind, member string) adapter.Object {
		return adapter.Object{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": "refused",
			"namespace": w.ns}, member: map[string]any{"pin": int64(4711471147114711)}}
	}
	transport := w.transport("quoting")
	_, err := transport.Apply(t.Context(), adapter.Application{Object: object("ConfigMap", "data"), Generation: 1})
	if err == nil || !strings.Contains(err.Error(), number) {
		t.Fatalf("the API server quotes no value: %v", err)
	}
	_, err = transport.Apply(t.Context(), adapter.Application{Object: object("Secret", "stringData"), Generation: 1})
	if err == nil || strings.Contains(err.Error(), number) || !strings.Contains(err.Error(), "field .stringData.pin") {
		t.Errorf("the error of a Secret is %v", err)
	}
}
