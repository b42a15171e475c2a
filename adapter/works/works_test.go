package works

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
	"atoll.dev/agent"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const (
	consumer = "mc-1"
	source   = "test-adapter"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// world is a Maestro, a management cluster, and its agent.
type world struct {
	*testing.T
	server *testworld.Maestro
	agent  *testworld.Agent
	admin  dynamic.Interface
	ns     string
	works  *Works
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
	w.works = New(Options{Client: w.client, RecreateWait: testsite.HangLimit})
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
	admin, err := planetest.Shared(w.T).Config.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	if w.admin, err = dynamic.NewForConfig(admin); err != nil {
		w.Fatal(err)
	}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": w.ns}}}
	if _, err := w.admin.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(
		w.Context(), namespace, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.agent = testworld.StartAgent(site, testworld.AgentOptions{Consumer: consumer, Admin: admin,
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
	o["metadata"].(map[string]any)["annotations"] = map[string]any{annotationGeneration: fmt.Sprint(generation)}
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

func (w *world) discover(t *Works, name string) []adapter.Object {
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

func (w *world) subject(t *Works) transporttest.Subject {
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

func TestMaestroTransportPassesTheSuite(t *testing.T) {
	w := newWorld(t)
	transporttest.Run(t, func(t *testing.T) transporttest.Subject { return w.subject(w.works) })
}

// A server that is the original knows none of Atoll's additions; the transport
// does the same with it.
func TestForeignMaestroTransportPassesTheSuite(t *testing.T) {
	w := newWorld(t)
	target, err := url.Parse("http://" + w.server.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/unknown-works"):
			http.Error(
				rw, `{"type":"Error","id":"404","href":"/api/maestro/v1/errors/404","code":"maestro-404",`+
					`"reason":"The requested resource doesn't exist"}`, http.StatusNotFound)
		case r.URL.Query().Has("fields"), r.URL.Query().Has("watch"):
			panic(http.ErrAbortHandler) // as the original
		default:
			r.Header.Del("If-Match")
			proxy.ServeHTTP(rw, r)
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	client, err := maestroclient.New(maestroclient.Options{HTTP: "http://" + l.Addr().String(), GRPC: w.server.GRPC,
		Source: source, Timeout: testsite.HangLimit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	works := New(Options{Client: client, RecreateWait: testsite.HangLimit})
	transporttest.Run(t, func(t *testing.T) transporttest.Subject { return w.subject(works) })
}

// The agent's feedback arrives in the work, in the form that task configs read, and the watch
// reports it.
func TestFeedbackReachesTheTransport(t *testing.T) {
	w := newWorld(t)
	told := make(chan adapter.Event, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := w.works.Watch(ctx, func(e adapter.Event) bool { told <- e; return true }); !errors.Is(
			err, context.Canceled) {
			t.Errorf("watch: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	a := w.application("a", "hello", 1)
	w.apply(a)
	limit := time.After(testsite.HangLimit)
	for {
		select {
		case e := <-told:
			if e != a.Event {
				t.Fatalf("the watcher reported %v", e)
			}
		case <-limit:
			t.Fatal("the watcher did not report the feedback")
		}
		if found := w.discover(w.works, "a"); len(found) == 1 && feedbackOf(found[0]) == "hello" {
			break
		}
	}
	cm, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || cm.GetName() != "a" {
		t.Fatal(err)
	}
}

// After the loss of Maestro's database, a work that only its agent holds exists for its adapter
// until the agent has deleted it (I8).
func TestI8ALostWorkIsDeletedBeforeItCountsAsAbsent(t *testing.T) {
	w := newWorld(t)
	w.apply(w.application("a", "1", 1))
	w.eventually("the work is applied", func() error {
		if found := w.discover(w.works, "a"); len(found) != 1 || feedbackOf(found[0]) != "1" {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	w.loseDatabase()
	w.register()
	w.eventually("Maestro knows what its agent holds", func() error {
		list, err := w.client.UnknownWorks(t.Context(), remote.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("none")
		}
		if err != nil {
			return err
		}
		var c struct {
			ComparedAt *time.Time `json:"compared_at"`
		}
		doc, err := w.client.ConsumerNamed(t.Context(), consumer)
		if err == nil {
			err = json.Unmarshal(doc.JSON, &c)
		}
		if err == nil && c.ComparedAt == nil {
			err = errors.New("not compared yet")
		}
		return err
	})
	found := w.discover(w.works, "a")
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	// An adapter that did not find the work gets an event when the agent reports it later.
	w.works.foreign = true // as if the server had been another
	o, err := w.works.Unconfirmed(t.Context(), adapter.Search{APIVersion: apiVersion, Kind: kind, Name: "a",
		TargetCluster: consumer})
	if err != nil || o == nil {
		t.Errorf("a work that only the agent holds is not unconfirmed: %v, %v", o, err)
	}
	byLabels := adapter.Search{APIVersion: apiVersion, Kind: kind, Namespace: "*", Labels: map[string]string{"a": "b"},
		TargetCluster: consumer}
	if o, err := w.works.Unconfirmed(t.Context(), byLabels); err != nil || o == nil {
		t.Errorf("an absence by labels is confirmed although the agent holds an unknown work: %v, %v", o, err)
	}
	w.eventually("the work is gone", func() error {
		if err := w.works.Delete(t.Context(), adapter.Deletion{Object: found[0], TargetCluster: consumer}); err != nil {
			return err
		}
		there := w.discover(w.works, "a")
		_, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
		switch {
		case len(there) > 0:
			return fmt.Errorf("found %v", there)
		case err == nil:
			t.Fatal("the adapter finds nothing, and the object is still there")
		}
		return nil
	})
	if o, err := w.works.Unconfirmed(t.Context(), byLabels); err != nil || o != nil {
		t.Errorf("in the end an absence by labels is unconfirmed: %v, %v", o, err)
	}
}

// Until the agent has reported after the loss of Maestro's database, no work counts as absent (I9).
func TestI9AnUnknownWorkIsNotAbsent(t *testing.T) {
	w := newWorld(t)
	search := adapter.Search{APIVersion: apiVersion, Kind: kind, Name: "a", TargetCluster: consumer}
	doubt := func(target string) adapter.Object {
		t.Helper()
		s := search
		s.TargetCluster = target
		o, err := w.works.Unconfirmed(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	w.eventually("the agent is heard", func() error {
		if o := doubt(consumer); o != nil {
			return fmt.Errorf("the absence is unconfirmed: %v", o)
		}
		return nil
	})
	w.agent.Stop()
	w.loseDatabase()
	if doubt(consumer) == nil {
		t.Error("without any consumer the absence is confirmed")
	}
	w.register()
	if o := doubt(consumer); o == nil || field(o, "name") != "a" || work.ID(field(o, "uid")) != w.client.BundleID(consumer,
		"a") {
		t.Errorf("without a word of the agent there is %v", o)
	}
	if o := doubt("never-was"); o != nil {
		t.Errorf("of a consumer that never was there is %v", o)
	}
	// Some of CLM's consumers may not be registered again yet.
	knows := New(Options{Client: w.client, Clusters: func(context.Context) ([]work.Consumer, error) {
		return []work.Consumer{consumer, "soon"}, nil
	}})
	for target, want := range map[string]bool{"soon": true, "never-was": false} {
		s := search
		s.TargetCluster = target
		if o, err := knows.Unconfirmed(t.Context(), s); err != nil || (o != nil) != want {
			t.Errorf("of %s there is %v, %v", target, o, err)
		}
	}
	byLabels := adapter.Search{APIVersion: apiVersion, Kind: kind, Namespace: "*", Labels: map[string]string{"a": "b"}}
	for _, target := range []string{consumer, ""} {
		byLabels.TargetCluster = target
		if o, err := w.works.Unconfirmed(t.Context(), byLabels); err != nil || o == nil {
			t.Errorf("without a word of the agent, by labels at %q there is %v, %v", target, o, err)
		}
	}
	w.agent.Start()
	w.eventually("the agent is heard again", func() error {
		if o := doubt(consumer); o != nil {
			return fmt.Errorf("the absence is unconfirmed: %v", o)
		}
		return nil
	})
}

// Applying an unknown work creates it and takes over the agent's copy.
func TestALostWorkIsTakenOver(t *testing.T) {
	w := newWorld(t)
	w.apply(w.application("a", "1", 1))
	var uid string
	w.eventually("the object is there", func() error {
		cm, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
		if err == nil {
			uid = string(cm.GetUID())
		}
		return err
	})
	w.loseDatabase()
	w.register()
	w.apply(w.application("a", "1", 1))
	w.eventually("feedback comes back", func() error {
		if found := w.discover(w.works, "a"); len(found) != 1 || feedbackOf(found[0]) != "1" {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	cm, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || string(cm.GetUID()) != uid {
		t.Errorf("%v, uid %s, was %s", err, cm.GetUID(), uid)
	}
}
