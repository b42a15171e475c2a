package works_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
	"atoll.dev/adapter/works"
	"atoll.dev/agent"
	"atoll.dev/client/maestroclient"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

// Each work is an object of this kind.
const (
	apiVersion = "work.open-cluster-management.io/v1"
	kind       = "ManifestWork"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// world is a Maestro, a management cluster, and its agent.
type world struct {
	*testing.T
	server *testworld.Maestro
	agent  *testworld.Agent
	admin  dynamic.Interface
	ns     string
	works  *works.Works
	client *maestroclient.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, ns: "n" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	site := testsite.New(t)
	w.server = testworld.StartMaestro(site, testworld.MaestroOptions{Plain: true})
	w.startAgent(site)
	w.client = w.server.DialPatiently("", source)
	w.register()
	w.works = works.New(works.Options{Client: w.client, RecreateWait: testsite.HangLimit})
	return w
}

func (w *world) register() {
	w.Helper()
	if _, err := w.client.CreateConsumer(w.Context(), consumer, nil); err != nil {
		w.Fatal(err)
	}
}

// loseDatabase starts Maestro again with an empty database.
func (w *world) loseDatabase() {
	w.Helper()
	w.server.Stop()
	w.server.LoseDatabase()
	w.server.Start()
}

// startAgent creates the namespace of the test and starts the agent. The tests of this package share one cluster, on
// which a broker's name distinguishes their agents.
func (w *world) startAgent(site *testsite.Site) {
	w.Helper()
	mc := testworld.SharedCluster(w.T)
	mc.CreateNamespace(w.ns)
	w.admin = mc.Objects
	w.agent = testworld.StartAgent(site, testworld.AgentOptions{Consumer: consumer, Admin: mc.Admin,
		GRPC: &agent.GRPCOptions{URL: w.server.Agents},
		Change: func(o *agent.Options) {
			o.BrokerHost += w.ns
			o.SeenEvery = 200 * time.Millisecond
		}})
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	testsite.Eventually(w, what, check)
}

// object is a work with one ConfigMap, whose value returns as feedback.
func (w *world) object(name, value string) adapter.Object {
	return adapter.Object{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": consumer},
		"spec": map[string]any{
			"workload": map[string]any{"manifests": []any{map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": w.ns},
				"data": map[string]any{"k": value, "n": "1"},
			}}},
			"manifestConfigs": []any{map[string]any{
				"resourceIdentifier": map[string]any{"group": "", "resource": "configmaps", "name": name,
					"namespace": w.ns},
				"feedbackRules": []any{map[string]any{"type": "JSONPaths", "jsonPaths": []any{
					map[string]any{"name": "said", "path": ".data.k"}}}},
			}},
		},
	}
}

func value(o adapter.Object) string {
	manifests, _, _ := unstructured.NestedSlice(o, "spec", "workload", "manifests")
	if len(manifests) == 0 {
		return ""
	}
	v, _, _ := unstructured.NestedString(manifests[0].(map[string]any), "data", "k")
	return v
}

func (w *world) application(name, value string, generation int64) adapter.Application {
	o := w.object(name, value)
	o["metadata"].(map[string]any)["annotations"] = map[string]any{works.AnnotationGeneration: fmt.Sprint(generation)}
	return adapter.Application{
		Resource: "work", Object: o, Generation: generation, TargetCluster: consumer, Event: adapter.Event{ID: name,
			Kind: "Cluster", Generation: generation},
	}
}

func (w *world) apply(a adapter.Application) {
	w.Helper()
	if _, err := w.works.Apply(w.Context(), a); err != nil {
		w.Fatal(err)
	}
}

func (w *world) discover(t *works.Works, name string) []adapter.Object {
	w.Helper()
	found, err := t.Discover(w.Context(), adapter.Search{APIVersion: apiVersion, Kind: kind, Name: name,
		TargetCluster: consumer})
	if err != nil {
		w.Fatal(err)
	}
	return found
}

// feedbackOf returns the feedback of the work's ConfigMap.
func feedbackOf(o adapter.Object) string {
	manifests, _, _ := unstructured.NestedSlice(o, "status", "resourceStatus", "manifests")
	if len(manifests) == 0 {
		return ""
	}
	values, _, _ := unstructured.NestedSlice(manifests[0].(map[string]any), "statusFeedback", "values")
	if len(values) == 0 {
		return ""
	}
	s, _, _ := unstructured.NestedString(values[0].(map[string]any), "fieldValue", "string")
	return s
}

func (w *world) subject(t *works.Works) transporttest.Subject {
	other := func(name string) maestroclient.Bundle {
		w.Helper()
		doc, err := w.client.Bundle(w.Context(), w.client.BundleID(consumer, name))
		if err != nil {
			w.Fatal(err)
		}
		var b struct {
			Metadata        metav1.ObjectMeta `json:"metadata"`
			Manifests       []json.RawMessage `json:"manifests"`
			ManifestConfigs json.RawMessage   `json:"manifest_configs"`
		}
		if err := json.Unmarshal(doc.JSON, &b); err != nil {
			w.Fatal(err)
		}
		c := maestroclient.Bundle{ID: w.client.BundleID(consumer, name), Consumer: consumer, Metadata: b.Metadata}
		c.Spec.Manifests = b.Manifests
		if err := json.Unmarshal(b.ManifestConfigs, &c.Spec.ManifestConfigs); err != nil {
			w.Fatal(err)
		}
		return c
	}
	return transporttest.Subject{
		Transport: t, Target: consumer, Object: w.object, Value: value,
		Modify: func(_ testing.TB, name, value string) {
			b := other(name)
			manifest := w.object(name, value)["spec"].(map[string]any)["workload"].(map[string]any)["manifests"].([]any)[0]
			raw, err := json.Marshal(manifest)
			if err != nil {
				w.Fatal(err)
			}
			b.Spec.Manifests = []json.RawMessage{raw}
			if _, err := w.client.UpdateBundle(w.Context(), b); err != nil {
				w.Fatal(err)
			}
		},
		Remove: func(_ testing.TB, name string) {
			if err := w.client.DeleteBundle(w.Context(), w.client.BundleID(consumer, name), ""); err != nil {
				w.Fatal(err)
			}
		},
	}
}
