package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/quick"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

func TestABrokerRestartLosesNoStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	w.broker.Stop()
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "2")))
	w.server.apply("two", manifests(configMap(w.ns, "b", "k", "1")))
	patch := []byte(`{"data":{"k":"drift"}}`) // the agent repairs without a connection
	if _, err := w.in(configMaps, w.ns).Patch(t.Context(), "a", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return dataOf(u, "k") == "1" })
	w.broker.Start()
	w.server.awaitApplied("one")
	w.server.awaitApplied("two")
	w.broker.Stop()
	w.server.delete("one")
	w.broker.Start()
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
}

func TestTheAgentSurvivesARestartOfTheAPIServer(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t)
	c := bootstrap(t, p)
	w := newSite(t, c, "default", "killed")
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir))
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.apply("gone", manifests(configMap(w.ns, "b", "k", "1")))
	w.server.awaitApplied("one")
	w.server.awaitApplied("gone")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "2")))
	w.server.apply("two", manifests(configMap(w.ns, "c", "k", "1")))
	w.server.delete("gone")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := w.agent.ReadyKube(ctx); err == nil {
		t.Error("the agent is ready without an API server")
	}
	planetest.Restart(t, p)
	start := time.Now()
	w.server.awaitApplied("one")
	w.server.awaitApplied("two")
	w.server.awaitGone("gone")
	t.Logf("converged %s after the API server was ready again", time.Since(start))
	w.awaitGone(t, configMaps, w.ns, "b")
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for _, h := range w.server.bundles["one"].history {
		if !strings.HasPrefix(h, "True/") {
			t.Errorf("Applied was %s", h)
		}
	}
}

// An agent that was away for 1,000 changes, deletions among them, converges
// soon after its return (I9).
func TestI9AThousandChangesWhileTheAgentIsAway(t *testing.T) {
	quick.Slow(t, "applies a thousand changes, a minute")
	t.Parallel()
	w := newWorld(t)
	id := func(i int) string { return fmt.Sprintf("work-%04d", i) }
	for i := range 400 {
		w.server.apply(work.ID(id(i)), manifests(configMap(w.ns, id(i), "k", "1")))
	}
	for i := range 400 {
		w.server.awaitApplied(work.ID(id(i)))
	}
	w.agent.stop()
	for i := range 200 {
		w.server.delete(work.ID(id(i)))
	}
	for i := 200; i < 400; i++ {
		w.server.apply(work.ID(id(i)), manifests(configMap(w.ns, id(i), "k", "2")))
	}
	for i := 400; i < 1000; i++ {
		w.server.apply(work.ID(id(i)), manifests(configMap(w.ns, id(i), "k", "2")))
	}
	start := time.Now()
	w.agent = startAgent(t, agentOptions(t, w.cluster, w.broker, w.consumer, w.dir))
	done := 0 // works that are deleted, or applied in their last generation: no later event changes that
	w.server.await("all deletions and updates", func() bool {
		for ; done < 1000; done++ {
			if done < 200 && w.server.bundles[id(done)] != nil || done >= 200 && !w.server.has(work.ID(id(done)),
				workv1.WorkApplied, metav1.ConditionTrue) {
				return false
			}
		}
		return true
	})
	t.Logf("converged in %s", time.Since(start))
	w.await(t, "exactly what was ordered", configMaps, w.ns, func(all map[string]*unstructured.Unstructured) bool {
		n := 0
		for name, u := range all {
			if strings.HasPrefix(name, "work-") {
				n++
				if dataOf(u, "k") != "2" {
					return false
				}
			}
		}
		return n == 800
	})
}

// The agent acknowledges a work to the broker only when it is on disk, and it survives any message
// (I6).
func TestI6MalformedEventsAreDroppedAndOthersApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	send := func(kind string, ext map[string]string, data string) {
		t.Helper()
		err := w.server.client.Publish(t.Context(), w.server.topic, bus.Event{
			ID:              "garbage",
			Source:          "maestro",
			Type:            kind,
			DataContentType: "application/json",
			Extensions:      ext,
			Data:            []byte(data),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	known := func(id work.ID, version string) map[string]string {
		return map[string]string{work.ExtClusterName: string(w.consumer), work.ExtResourceID: string(id),
			work.ExtResourceVersion: version}
	}
	send("no.such.type", nil, "")
	send(work.SpecCreate, nil, "{}")
	send(work.SpecCreate, known("x", "many"), "{}")
	send(work.SpecCreate, known("x", "-1"), "{}")
	send(work.SpecCreate, known("x", "1"), "not json")
	send(work.SpecCreate, known("x", "1"), `{"manifests":{"a":1}}`)
	send(work.StatusResync, known("x", "1"), "[]")
	send(work.SpecCreate, map[string]string{work.ExtClusterName: "other", work.ExtResourceID: "y",
		work.ExtResourceVersion: "1"}, `{"manifests":[]}`)
	w.server.apply("odd", manifests(json.RawMessage(`[1]`), json.RawMessage(`"x"`), json.RawMessage(`{}`),
		json.RawMessage(`{"apiVersion":"a/b/c","kind":"K","metadata":{"name":"x"}}`),
		json.RawMessage(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ok","namespace":"`+w.ns+
			`","uid":"1","resourceVersion":"7","managedFields":[]},"data":{"k":7}}`),
		configMap(w.ns, "a", "k", "1"), configMap(w.ns, "a", "k", "2")))
	w.server.awaitCondition("odd", workv1.WorkApplied, metav1.ConditionFalse)
	w.server.apply("empty", manifests())
	w.server.await("a status of a work without manifests",
		func() bool { return w.server.has("empty", workv1.WorkAvailable, metav1.ConditionUnknown) })
	if u := w.get(t, configMaps, w.ns, "a"); dataOf(u, "k") != "1" {
		t.Errorf("of two manifests of one object the first counts, got %v", u.Object["data"])
	}
	// The agent acknowledges the deletion of an unknown work.
	w.server.mu.Lock()
	w.server.bundles["unknown"] = &bundle{generation: 3}
	w.server.mu.Unlock()
	w.server.delete("unknown")
	w.server.awaitGone("unknown")
	for _, id := range []string{"odd", "empty"} {
		w.server.delete(work.ID(id))
		w.server.awaitGone(work.ID(id))
	}
}

func TestStaleSpecsAreDroppedAndEqualSpecsChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	w.server.mu.Lock()
	old := *w.server.bundles["one"]
	w.server.mu.Unlock()
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "2")))
	w.server.awaitApplied("one")
	version := w.get(t, configMaps, w.ns, "a").GetResourceVersion()
	w.server.mu.Lock()
	now, statuses := *w.server.bundles["one"], w.server.statuses
	w.server.mu.Unlock()
	for _, b := range []bundle{old, now, old} {
		if err := w.server.publish(t.Context(), work.SpecUpdate, "one", b); err != nil {
			t.Fatal(err)
		}
	}
	w.server.apply("two", manifests(configMap(w.ns, "b", "k", "1")))
	w.server.awaitApplied("two")
	if got := w.get(t, configMaps, w.ns, "a").GetResourceVersion(); got != version {
		t.Error("a stale or known spec wrote the object")
	}
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	if w.server.statuses != statuses+1 {
		t.Errorf("%d statuses were sent, want that of the other work only", w.server.statuses-statuses)
	}
}

func TestAStatusResyncComparesHashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, id := range []string{"one", "two"} {
		w.server.apply(work.ID(id), manifests(configMap(w.ns, id, "k", "1")))
		w.server.awaitApplied(work.ID(id))
	}
	w.server.mu.Lock()
	w.server.bundles["one"].hash = "forgotten"
	w.server.mu.Unlock()
	w.server.askStatuses(t.Context())
	w.server.await("the status that differs", func() bool { return w.server.bundles["one"].hash != "forgotten" })
	w.server.mu.Lock()
	if w.server.responses != 1 {
		t.Errorf("%d answers, want 1", w.server.responses)
	}
	w.server.mu.Unlock()
	err := w.server.client.Publish(t.Context(), w.server.topic, bus.Event{
		ID: "all", Source: "maestro", Type: work.StatusResync, Extensions: map[string]string{
			work.ExtClusterName: string(w.consumer)}, Data: []byte(`{"statusHashes":[]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.server.await("all statuses", func() bool { return w.server.responses == 3 })
}

func TestTheAgentPublishesHeartbeats(t *testing.T) {
	t.Parallel()
	c, ns := sharedCluster(t)
	b := testsite.New(t).StartBroker()
	s := startServer(t, b, work.Consumer(ns))
	o := agentOptions(t, c, b, work.Consumer(ns), t.TempDir())
	o.SeenEvery = 10 * time.Millisecond
	startAgent(t, o)
	s.await("three heartbeats", func() bool { return s.seen >= 3 })
}
