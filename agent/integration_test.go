package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/internal/quick"
)

func TestAWorkIsCreatedUpdatedPrunedAndDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1")))
	w.server.awaitApplied("one")
	w.server.awaitCondition("one", workv1.WorkAvailable, metav1.ConditionTrue)
	a := w.get(t, configMaps, w.ns, "a")
	if dataOf(a, "k") != "1" {
		t.Fatalf("applied %v", a.Object["data"])
	}
	amw := w.get(t, appliedWorks, "", w.amw("one"))
	if o := a.GetOwnerReferences(); len(o) != 1 || o[0] != ownerReference(w.amw("one"), amw.GetUID()) {
		t.Fatalf("owners %v", o)
	}

	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "2")))
	w.server.awaitApplied("one")
	if a := w.get(t, configMaps, w.ns, "a"); dataOf(a, "k") != "2" {
		t.Fatalf("applied %v", a.Object["data"])
	}
	w.awaitGone(t, configMaps, w.ns, "b")
	w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
		refs := appliedResourcesOf(u)
		return len(refs) == 1 && refs[0] == refOf(objectKey{configMaps, w.ns, "a"}, a.GetUID())
	})

	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
}

func TestABadManifestDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := raw(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "Not-A-Name",
		"namespace": w.ns}})
	noKind := raw(map[string]any{"apiVersion": "example.com/v1", "kind": "Nothing", "metadata": map[string]any{
		"name": "x"}})
	forbidden := raw(map[string]any{"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": map[string]any{
		"name": "x", "namespace": w.ns}})
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1"), bad, noKind, forbidden, configMap("not-there", "c",
		"k", "1"), configMap(w.ns, "b", "k", "1")))
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	w.get(t, configMaps, w.ns, "a")
	w.get(t, configMaps, w.ns, "b")
	for ordinal, want := range []struct{ applied, message, available string }{
		{"True", "Apply manifest complete", "ResourceAvailable"},
		{"False", "Failed to apply manifest: ConfigMap \"Not-A-Name\" is invalid", "ResourceNotAvailable"},
		{"False", "Failed to apply manifest: the server doesn't have a resource type \"Nothing\"",
			"IncompleteResourceMeta"},
		{"False", "Failed to apply manifest: events.events.k8s.io \"x\" is forbidden", "FetchingResourceFailed"},
		{"False", "Failed to apply manifest: namespaces \"not-there\" not found", "ResourceNotAvailable"},
		{"True", "Apply manifest complete", "ResourceAvailable"},
	} {
		m := w.server.manifest("one", ordinal)
		applied, available := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied), meta.FindStatusCondition(
			m.Conditions, workv1.ManifestAvailable)
		if string(applied.Status) != want.applied || !strings.HasPrefix(applied.Message, want.message) ||
			available.Reason != want.available || m.ResourceMeta.Ordinal != int32(ordinal) {
			t.Errorf("manifest %d: %s %q, %s; want %+v", ordinal, applied.Status, applied.Message, available.Reason,
				want)
		}
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

func TestNamespacesAndKindsOfAWorkAreAppliedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	group := "g" + fmt.Sprint(time.Now().UnixNano()) + ".example.com"
	crd := raw(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{
			"name": "things." + group},
		"spec": map[string]any{"group": group, "scope": "Namespaced", "names": map[string]any{"plural": "things",
			"kind": "Thing"}, "versions": []any{map[string]any{
			"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		}}},
	})
	thing := raw(map[string]any{"apiVersion": group + "/v1", "kind": "Thing", "metadata": map[string]any{"name": "x",
		"namespace": w.ns + "-new"}})
	b := manifests(thing, configMap(w.ns+"-new", "a", "k", "1"), crd,
		raw(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": w.ns + "-new"}}))
	w.server.apply("one", b)
	// The agent's rights do not cover the new group: the status has the reason.
	w.server.await("the kind to be known and refused", func() bool {
		st := w.server.bundles["one"].status
		return st != nil && slices.ContainsFunc(st.ResourceStatus[0].Conditions, func(c metav1.Condition) bool {
			return c.Type == workv1.ManifestApplied && strings.Contains(c.Message, "is forbidden")
		})
	})
	m := w.server.manifest("one", 1)
	if !meta.IsStatusConditionTrue(m.Conditions, workv1.ManifestApplied) {
		t.Errorf("the ConfigMap in the new namespace: %v", m.Conditions)
	}
	// Once the API server has listed the kind, it removes the CustomResourceDefinition at once;
	// before that, the removal may take five minutes (docs/decisions/070).
	things := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}
	if _, err := w.in(things, "").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, namespaces, "", w.ns+"-new")
}

func TestAManifestIsAppliedOnceItsNamespaceAppears(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns+"-late", "a", "k", "1")))
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	w.create(t, namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": w.ns + "-late"}})
	w.server.awaitApplied("one")
}

func TestDriftIsRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1", "l", "1"), configMap(w.ns, "b", "k", "1")))
	w.server.awaitApplied("one")
	patch := func(body string) {
		t.Helper()
		if _, err := w.in(configMaps, w.ns).Patch(t.Context(), "a", types.MergePatchType, []byte(body),
			metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"data":{"k":"changed","theirs":"stays"}}`)
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool {
		return dataOf(u, "k") == "1" && dataOf(u, "theirs") == "stays"
	})
	patch(`{"data":{"l":null}}`)
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return dataOf(u, "l") == "1" })

	start := time.Now()
	if err := w.in(configMaps, w.ns).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitObject(t, configMaps, w.ns, "b", func(u *unstructured.Unstructured) bool { return dataOf(u, "k") == "1" })
	t.Logf("a deleted object is back after %s", time.Since(start))
	w.restart(t)
	patch(`{"data":{"k":"changed while the agent starts"}}`)
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return dataOf(u, "k") == "1" })
	w.agent.stop()
	patch(`{"data":{"k":"changed while the agent is away"}}`)
	w.restart(t)
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return dataOf(u, "k") == "1" })
}

func TestADeletedAppliedManifestWorkIsCreatedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	old := w.get(t, configMaps, w.ns, "a").GetUID()
	w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
		return len(appliedResourcesOf(u)) == 1
	})
	if err := w.in(appliedWorks, "").Delete(t.Context(), w.amw("one"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return u.GetUID() != old })
	w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
		refs := appliedResourcesOf(u)
		return u.GetDeletionTimestamp() == nil && len(refs) == 1 && refs[0].UID != string(old)
	})
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
}

func TestTwoWorksShareAnObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	w.server.apply("two", manifests(configMap(w.ns, "a", "k", "2")))
	w.server.awaitApplied("two")
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool {
		return len(u.GetOwnerReferences()) == 2
	})
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool {
		return len(u.GetOwnerReferences()) == 1 && dataOf(u, "k") == "2" && u.GetDeletionTimestamp() == nil
	})
	w.server.delete("two")
	w.server.awaitGone("two")
	w.awaitGone(t, configMaps, w.ns, "a")
}

func TestUpdateStrategies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"only", "mine", "theirs"} {
		w.create(t, configMaps, w.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": name}, "data": map[string]any{"k": "there"}})
	}
	config := func(name string, s workv1.UpdateStrategy) workv1.ManifestConfigOption {
		return workv1.ManifestConfigOption{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps",
			Namespace: w.ns, Name: name}, UpdateStrategy: &s}
	}
	b := manifests(configMap(w.ns, "only", "k", "1"), configMap(w.ns, "theirs", "k", "1"), configMap(w.ns, "mine", "k",
		"1"), configMap(w.ns, "ignored", "k", "1"), configMap(w.ns, "made", "k", "1"))
	b.ManifestConfigs = []workv1.ManifestConfigOption{
		config("only", workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly}),
		config("made", workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly}),
		config("theirs", workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}),
		config("mine", workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply,
			ServerSideApply: &workv1.ServerSideApplyConfig{FieldManager: "work-agent-x"}}),
		config("ignored", workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply,
			ServerSideApply: &workv1.ServerSideApplyConfig{
				IgnoreFields: []workv1.IgnoreField{{Condition: workv1.IgnoreFieldsConditionOnSpokePresent,
					JQPathExpressions: []string{".data["}}},
			}}),
	}
	w.server.apply("one", b)
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	for ordinal, want := range []string{"Apply manifest complete", "Apply manifest complete",
		"Failed to apply manifest: Apply failed with 1 conflict", "Failed to process ignoreFields: ",
		"Apply manifest complete"} {
		c := meta.FindStatusCondition(w.server.manifest("one", ordinal).Conditions, workv1.ManifestApplied)
		if !strings.HasPrefix(c.Message, want) {
			t.Errorf("manifest %d: %q, want %q", ordinal, c.Message, want)
		}
	}
	for name, want := range map[string]struct {
		value  string
		owners int
	}{"only": {"there", 1}, "theirs": {"there", 0}, "mine": {"there", 0}, "made": {"1", 1}} {
		u := w.get(t, configMaps, w.ns, name)
		if dataOf(u, "k") != want.value || len(u.GetOwnerReferences()) != want.owners {
			t.Errorf("%s: %q, owners %v; want %+v", name, dataOf(u, "k"), u.GetOwnerReferences(), want)
		}
	}
	w.server.delete("one")
	w.server.awaitGone("one")
	w.get(t, configMaps, w.ns, "theirs")
	w.awaitGone(t, configMaps, w.ns, "made")
}

func TestARestartRequestsNoKnownWork(t *testing.T) {
	quick.Slow(t, "restarts an agent with 300 works")
	w := newWorld(t)
	for i := range 300 {
		w.server.apply(work.ID(fmt.Sprint("work-", i)), manifests(configMap(w.ns, fmt.Sprint("c", i), "k", "1")))
	}
	for i := range 300 {
		w.server.awaitApplied(work.ID(fmt.Sprint("work-", i)))
	}
	versions := map[string]string{}
	for i := range 300 {
		name := fmt.Sprint("c", i)
		versions[name] = w.get(t, configMaps, w.ns, name).GetResourceVersion()
	}
	w.agent.stop()
	w.server.mu.Lock()
	specs, statuses, resyncs, received := w.server.specs, w.server.statuses, len(w.server.resyncs), w.server.received
	w.server.mu.Unlock()
	w.restart(t)
	w.server.await("a resync", func() bool { return len(w.server.resyncs) > resyncs })
	w.server.mu.Lock()
	if got := w.server.received - received; got > 2 {
		t.Errorf(
			"the restart cost %d events of the agent, want at most two: a digest, and the list for a server that "+
				"knows no digests", got)
	}
	w.server.mu.Unlock()
	w.server.apply("last", manifests(configMap(w.ns, "last", "k", "1"))) // all before it is over when it is done
	w.server.awaitApplied("last")
	// One list and one watch of the kind show all objects.
	if got := applyCalls(w.agent.metrics); got != 1 {
		t.Errorf("the restart cost %d calls about objects, want none", got-1)
	}
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	if got := len(w.server.resyncs[resyncs]); got != 300 {
		t.Errorf("the agent knows %d works after its restart, want 300", got)
	}
	if w.server.specs != specs+1 || w.server.statuses != statuses+1 {
		t.Errorf("the restart cost %d spec and %d status events, want none", w.server.specs-specs-1,
			w.server.statuses-statuses-1)
	}
	for name, v := range versions {
		if got := w.get(t, configMaps, w.ns, name).GetResourceVersion(); got != v {
			t.Errorf("%s was written again", name)
		}
	}
}

// applyCalls counts the calls that wrote or read an object.
func applyCalls(m *metrics) int {
	n := uint64(0)
	for _, result := range []string{"ok", "error"} {
		var out dto.Metric
		if err := m.calls.WithLabelValues("apply", result).(prometheus.Histogram).Write(&out); err != nil {
			panic(err)
		}
		n += out.GetHistogram().GetSampleCount()
	}
	return int(n)
}

// An agent that lost its store requests all works and deletes nothing: absence is no deletion.
func TestAWipedOrDamagedStoreDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(path string) error{
		"wiped": os.Remove,
		"damaged": func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			data[len(data)/3] ^= 0xff
			return os.WriteFile(path, data, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for i := range 5 {
				w.server.apply(work.ID(fmt.Sprint("work-", i)), manifests(configMap(w.ns, fmt.Sprint("c", i), "k", "1")))
			}
			for i := range 5 {
				w.server.awaitApplied(work.ID(fmt.Sprint("work-", i)))
				w.awaitObject(t, appliedWorks, "", w.amw(work.ID(fmt.Sprint("work-", i))),
					func(u *unstructured.Unstructured) bool { return len(appliedResourcesOf(u)) == 1 })
			}
			uid := w.get(t, configMaps, w.ns, "c0").GetUID()
			w.agent.stop()
			if err := harm(filepath.Join(w.dir, storeFile)); err != nil {
				t.Fatal(err)
			}
			// A work that the server lost stays; a work that it deletes meanwhile is removed.
			w.server.mu.Lock()
			delete(w.server.bundles, "work-1")
			w.server.bundles["work-2"].deleting = true
			w.server.bundles["work-2"].data = nil // as for an unknown id: no data
			for _, b := range w.server.bundles {
				b.status, b.observed = nil, 0
			}
			w.server.mu.Unlock()
			w.restart(t)
			w.server.awaitGone("work-2")
			w.awaitGone(t, configMaps, w.ns, "c2")
			for _, i := range []int{0, 3, 4} {
				w.server.awaitApplied(work.ID(fmt.Sprint("work-", i)))
			}
			if got := w.get(t, configMaps, w.ns, "c0").GetUID(); got != uid {
				t.Error("c0 was made anew")
			}
			w.get(t, configMaps, w.ns, "c1")
		})
	}
}
