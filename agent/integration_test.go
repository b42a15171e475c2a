package agent

import (
	"context"
	"encoding/json"
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
	"atoll.dev/bus"
	"atoll.dev/plane/planetest"
)

func TestAWorkIsCreatedUpdatedPrunedAndDeleted(t *testing.T) {
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

// recorded is an AppliedManifestWork's list of resources.
func appliedResourcesOf(u *unstructured.Unstructured) []resourceRef {
	a, err := new(kube).amwOf(u)
	if err != nil {
		panic(err.message)
	}
	return a.applied
}

func TestDeletionModes(t *testing.T) {
	for name, mode := range map[string]struct {
		option *workv1.DeleteOption
		stays  []string
	}{
		"foreground": {&workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeForeground}, nil},
		"background": {&workv1.DeleteOption{PropagationPolicy: "Background"}, nil},
		"orphan": {&workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan},
			[]string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			b := manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1"))
			b.DeleteOption = mode.option
			checkDeletion(t, w, b, mode.stays)
		})
	}
	t.Run("selectively orphan", func(t *testing.T) {
		w := newWorld(t)
		b := manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1"))
		b.DeleteOption = &workv1.DeleteOption{
			PropagationPolicy: workv1.DeletePropagationPolicyTypeSelectivelyOrphan,
			SelectivelyOrphan: &workv1.SelectivelyOrphan{OrphaningRules: []workv1.OrphaningRule{
				{Resource: "configmaps", Namespace: w.ns, Name: "b"}}},
		}
		checkDeletion(t, w, b, []string{"b"})
	})
	t.Run("orphan by the last word", func(t *testing.T) {
		w := newWorld(t)
		w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1")))
		w.server.awaitApplied("one")
		b := manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1"))
		b.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
		checkDeletion(t, w, b, []string{"a", "b"})
	})
}

func checkDeletion(t *testing.T, w *world, b work.Bundle, stays []string) {
	t.Helper()
	w.server.apply("one", b)
	w.server.awaitApplied("one")
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
	for _, name := range []string{"a", "b"} {
		if !slices.Contains(stays, name) {
			w.awaitGone(t, configMaps, w.ns, name)
			continue
		}
		if o := w.get(t, configMaps, w.ns, name).GetOwnerReferences(); len(o) > 0 {
			t.Errorf("%s is left behind, but owned by %v", name, o)
		}
	}
}

// The agent acknowledges a deletion when the objects are removed, not at the request (I9).
func TestI9DeletionWaitsForTheObjects(t *testing.T) {
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	held := []byte(`{"metadata":{"finalizers":["test.example/hold"]}}`)
	if _, err := w.in(configMaps, w.ns).Patch(t.Context(), "a", types.MergePatchType, held,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.server.delete("one")
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool {
		return u.GetDeletionTimestamp() != nil
	})
	w.server.awaitCondition("one", workv1.WorkDeleting, metav1.ConditionTrue)
	w.restart(t) // and a restart forgets nothing of it
	w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
		return u.GetDeletionTimestamp() != nil
	})
	w.server.await("a resync that still lists the work", func() bool {
		last := w.server.resyncs[len(w.server.resyncs)-1]
		return slices.ContainsFunc(last, func(v work.SpecVersion) bool { return v.ID == "one" })
	})
	if w.server.gone["one"] > 0 {
		t.Fatal("acknowledged while the object is there")
	}
	if _, err := w.in(configMaps, w.ns).Patch(t.Context(), "a", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.server.awaitGone("one")
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
}

// While a deleted work waits for finalizers, its AppliedManifestWork lists the remaining objects,
// as OCM's does.
func TestAppliedResourcesShrinkWhileADeletionWaits(t *testing.T) {
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1"),
		configMap(w.ns, "c", "k", "1")))
	w.server.awaitApplied("one")
	hold := func(name, finalizers string) {
		t.Helper()
		body := []byte(`{"metadata":{"finalizers":` + finalizers + `}}`)
		if _, err := w.in(configMaps, w.ns).Patch(t.Context(), name, types.MergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	listed := func(want ...string) {
		t.Helper()
		w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
			var names []string
			for _, r := range appliedResourcesOf(u) {
				names = append(names, r.Name)
			}
			return slices.Equal(names, want)
		})
	}
	listed("a", "b", "c")
	hold("b", `["test.example/hold"]`)
	hold("c", `["test.example/hold"]`)
	w.server.delete("one")
	listed("b", "c")
	w.restart(t)
	hold("b", "null")
	listed("c")
	hold("c", "null")
	w.server.awaitGone("one")
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
}

func TestABadManifestDelaysNoOther(t *testing.T) {
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
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns+"-late", "a", "k", "1")))
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	w.create(t, namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": w.ns + "-late"}})
	w.server.awaitApplied("one")
}

func TestDriftIsRepaired(t *testing.T) {
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

func TestFeedback(t *testing.T) {
	w := newWorld(t)
	deployment := raw(map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "d", "namespace": w.ns},
		"spec": map[string]any{
			"replicas": 2, "selector": map[string]any{"matchLabels": map[string]any{"a": "b"}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}},
		},
	})
	b := manifests(deployment, configMap(w.ns, "a", "k", "1"))
	b.ManifestConfigs = []workv1.ManifestConfigOption{
		{
			ResourceIdentifier: workv1.ResourceIdentifier{Group: "apps", Resource: "deployments", Namespace: w.ns,
				Name: "d"},
			FeedbackRules: []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}, {Type: workv1.JSONPathsType,
				JsonPaths: []workv1.JsonPath{
					{Name: "spec", Path: ".spec.selector"}, {Name: "generation", Path: ".metadata.generation"},
					{Name: "none", Path: ".nothing"},
				}}},
		},
		{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*", Name: "*"},
			FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
				{Name: "k", Path: ".data.k"}}}},
		},
	}
	w.server.apply("one", b)
	w.server.await("the controllers' word about the Deployment", func() bool {
		if !w.server.has("one", workv1.WorkApplied, metav1.ConditionTrue) {
			return false
		}
		return feedbackOf(w.server.bundles["one"].status.ResourceStatus[0])["Replicas"] == "2"
	})
	got := feedbackOf(w.server.manifest("one", 0))
	if got["spec"] != `{"matchLabels":{"a":"b"}}` || got["generation"] != "1" || got["none"] != "" {
		t.Errorf("feedback %v", got)
	}
	if got := feedbackOf(w.server.manifest("one", 1)); got["k"] != "1" {
		t.Errorf("feedback %v", got)
	}
	if !meta.IsStatusConditionTrue(w.server.manifest("one", 0).Conditions, conditionFeedback) {
		t.Error("the feedback is not synced")
	}
	// The rules change, the manifests do not.
	b.ManifestConfigs[1].FeedbackRules[0].JsonPaths[0] = workv1.JsonPath{Name: "all", Path: ".data"}
	w.server.apply("one", b)
	w.server.await("feedback by the new rules", func() bool {
		return w.server.has("one", workv1.WorkApplied, metav1.ConditionTrue) &&
			feedbackOf(w.server.bundles["one"].status.ResourceStatus[1])["all"] == `{"k":"1"}`
	})
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, deployments, w.ns, "d")
}

// TestI11RulesForSecretsReadNothing: a work with a Secret that it only reads, and with rules
// for it. Its status must have no value of the Secret, and must say why.
func TestI11RulesForSecretsReadNothing(t *testing.T) {
	w := newWorld(t)
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	object := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s",
		"namespace": w.ns}}
	b := manifests(raw(object))
	object["stringData"] = map[string]any{"k": "hidden-value"}
	w.create(t, secrets, w.ns, object)
	b.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "secrets", Namespace: "*", Name: "*"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly},
		FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
			{Name: "all", Path: ".data"}}}},
		ConditionRules: []workv1.ConditionRule{{Condition: "Mine", Type: workv1.CelConditionExpressionsType,
			CelExpressions: []string{"true"}, MessageExpression: "string(object.data.k)"}},
	}}
	w.server.apply("one", b)
	w.server.awaitCondition("one", workv1.WorkAvailable, metav1.ConditionTrue)
	got := w.server.manifest("one", 0)
	if len(got.StatusFeedbacks.Values) != 0 {
		t.Errorf("feedback values %v", got.StatusFeedbacks.Values)
	}
	for _, kind := range []string{conditionFeedback, "Mine"} {
		c := meta.FindStatusCondition(got.Conditions, kind)
		if c == nil || c.Status == metav1.ConditionTrue || !strings.Contains(c.Message, work.SecretRulesRefused) {
			t.Errorf("condition %s is %+v", kind, c)
		}
	}
	w.server.delete("one")
	w.server.awaitGone("one")
}

func feedbackOf(m workv1.ManifestCondition) map[string]string {
	values := map[string]string{}
	for _, v := range m.StatusFeedbacks.Values {
		switch v.Value.Type {
		case workv1.Integer:
			values[v.Name] = fmt.Sprint(*v.Value.Integer)
		case workv1.String:
			values[v.Name] = *v.Value.String
		case workv1.Boolean:
			values[v.Name] = fmt.Sprint(*v.Value.Boolean)
		case workv1.JsonRaw:
			values[v.Name] = *v.Value.JsonRaw
		}
	}
	return values
}

func TestUpdateStrategies(t *testing.T) {
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

// applies counts the calls that wrote or read an object.
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

func TestABrokerRestartLosesNoStatus(t *testing.T) {
	w := newWorld(t)
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	w.broker.stop()
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "2")))
	w.server.apply("two", manifests(configMap(w.ns, "b", "k", "1")))
	patch := []byte(`{"data":{"k":"drift"}}`) // the agent repairs without a connection
	if _, err := w.in(configMaps, w.ns).Patch(t.Context(), "a", types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return dataOf(u, "k") == "1" })
	w.broker.start()
	w.server.awaitApplied("one")
	w.server.awaitApplied("two")
	w.broker.stop()
	w.server.delete("one")
	w.broker.start()
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
}

func TestTheAgentSurvivesARestartOfTheAPIServer(t *testing.T) {
	p := planetest.Start(t)
	c := bootstrap(t, p)
	w := &world{cluster: c, ns: "default", consumer: "killed", broker: startBroker(t), dir: t.TempDir()}
	w.server = startServer(t, w.broker, w.consumer)
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
	c, ns := sharedCluster(t)
	b := startBroker(t)
	s := startServer(t, b, work.Consumer(ns))
	o := agentOptions(t, c, b, work.Consumer(ns), t.TempDir())
	o.SeenEvery = 10 * time.Millisecond
	startAgent(t, o)
	s.await("three heartbeats", func() bool { return s.seen >= 3 })
}
