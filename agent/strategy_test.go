package agent

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// asUser writes an object with another field manager.
func (w *world) asUser(t *testing.T, name, patch string) {
	t.Helper()
	if _, err := w.in(configMaps, w.ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "user"}); err != nil {
		t.Fatal(err)
	}
}

func modified(t *testing.T, manifest json.RawMessage, change func(u *unstructured.Unstructured)) json.RawMessage {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(manifest); err != nil {
		t.Fatal(err)
	}
	change(u)
	out, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func dataAll(u *unstructured.Unstructured) map[string]string {
	data, _, _ := unstructured.NestedStringMap(u.Object, "data")
	return data
}

// An update replaces the content of other writers by the manifest's, and adds to the object's labels,
// annotations and finalizers.
func TestUpdateReplacesContentOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, configMaps, w.ns, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name": "a", "labels": map[string]any{"theirs": "1", "out": "1"}, "annotations": map[string]any{"note": "1",
				"old": "1"},
			"finalizers": []any{"test.example/theirs"},
		},
		"data": map[string]any{"k": "there", "more": "there"},
	})
	uid := w.get(t, configMaps, w.ns, "a").GetUID()
	manifest := modified(t, configMap(w.ns, "a", "k", "1"), func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{"ours": "1", "out-": ""})
		u.SetAnnotations(map[string]string{"old-": "", "never-": ""})
		u.SetFinalizers([]string{"test.example/ours"})
	})
	w.server.apply("one", manifests(manifest))
	w.server.awaitApplied("one")
	a := w.get(t, configMaps, w.ns, "a")
	if !maps.Equal(dataAll(a), map[string]string{"k": "1"}) || a.GetUID() != uid {
		t.Errorf("data %v, uid %s; want the manifest's in the same object %s", dataAll(a), a.GetUID(), uid)
	}
	if !maps.Equal(a.GetLabels(), map[string]string{"theirs": "1", "ours": "1"}) || !maps.Equal(a.GetAnnotations(),
		map[string]string{"note": "1"}) {
		t.Errorf("labels %v, annotations %v", a.GetLabels(), a.GetAnnotations())
	}
	if !slices.Equal(a.GetFinalizers(), []string{"test.example/theirs"}) {
		t.Errorf("finalizers %v, want those that were there", a.GetFinalizers())
	}

	// A field that the manifest no longer names stays, unless it is content.
	w.asUser(t, "a", `{"data":{"user":"1"},"metadata":{"labels":{"user":"1"}}}`)
	w.server.apply("one", manifests(modified(t, configMap(w.ns, "a", "other", "2"), func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{"user-": ""})
	})))
	w.server.awaitApplied("one")
	a = w.get(t, configMaps, w.ns, "a")
	if !maps.Equal(dataAll(a), map[string]string{"other": "2"}) ||
		!maps.Equal(a.GetLabels(), map[string]string{"theirs": "1", "ours": "1"}) {
		t.Errorf("data %v, labels %v", dataAll(a), a.GetLabels())
	}

	// Another writer that takes over a field does not block the agent.
	w.asUser(t, "a", `{"data":{"other":"user"}}`)
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool {
		return dataOf(u, "other") == "2"
	})
	w.asUser(t, "a", `{"metadata":{"finalizers":null}}`)
}

// A field that the schema does not know, and a list that has an entry twice,
// are no reason to refuse an update.
func TestUpdateAcceptsWhatServerSideApplyRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	unknown := modified(t, configMap(w.ns, "unknown", "k", "1"), func(u *unstructured.Unstructured) {
		u.Object["future"] = "1"
	})
	twice := json.RawMessage(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"twice","namespace":"` +
		w.ns + `"},"spec":{"replicas":0,
		"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"},"creationTimestamp":null},
		"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}]}}}}`)
	w.server.apply("one", manifests(unknown, twice))
	w.server.awaitApplied("one")
	if got := dataOf(w.get(t, configMaps, w.ns, "unknown"), "k"); got != "1" {
		t.Errorf("k is %q", got)
	}
	w.server.apply("one", manifests(modified(t, unknown, func(u *unstructured.Unstructured) {
		u.Object["data"] = map[string]any{"other": "2"}
	}), twice))
	w.server.awaitApplied("one")
	if got := dataAll(w.get(t, configMaps, w.ns, "unknown")); !maps.Equal(got, map[string]string{"other": "2"}) {
		t.Errorf("data is %v", got)
	}
	w.asUser(t, "unknown", `{"data":{"other":"user"}}`) // drift is seen in full updates, too
	w.awaitObject(t, configMaps, w.ns, "unknown", func(u *unstructured.Unstructured) bool {
		return dataOf(u, "other") == "2"
	})
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "unknown")
	w.awaitGone(t, deployments, w.ns, "twice")
}

func withStrategy(b work.Bundle, s workv1.UpdateStrategy) work.Bundle {
	b.ManifestConfigs = append(b.ManifestConfigs, workv1.ManifestConfigOption{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*",
			Name: "*"}, UpdateStrategy: &s,
	})
	return b
}

func TestIgnoredFieldsBelongToTheCluster(t *testing.T) {
	t.Parallel()
	for name, fields := range map[string]workv1.IgnoreField{
		"JSONPath": {JSONPaths: []string{".data.count"}}, "pointer": {JSONPointers: []string{"/data/count"}},
		"jq": {JQPathExpressions: []string{`.data | .count`}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			bundle := func(when workv1.IgnoreFieldsCondition, k, count string) work.Bundle {
				f := fields
				f.Condition = when
				m := modified(t, configMap(w.ns, "a", "k", k), func(u *unstructured.Unstructured) {
					u.Object["data"] = map[string]any{"k": k, "count": count}
				})
				return withStrategy(manifests(m), workv1.UpdateStrategy{
					Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{
						Force: true, IgnoreFields: []workv1.IgnoreField{f}},
				})
			}
			expect := func(what, k, count string) {
				t.Helper()
				w.server.awaitApplied("one")
				if got := dataAll(w.get(t, configMaps, w.ns, "a")); got["k"] != k || got["count"] != count {
					t.Fatalf("%s: %v, want k %s and count %s", what, got, k, count)
				}
			}
			present, change := workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreFieldsConditionOnSpokeChange
			w.server.apply("one", bundle(present, "1", "1"))
			expect("made in full", "1", "1")
			if h := w.get(t, configMaps, w.ns, "a").GetAnnotations()[workv1.ManifestConfigSpecHashAnnotationKey]; len(
				h) != 32 {
				t.Errorf("the hash is %q", h)
			}
			w.server.apply("one", bundle(present, "2", "9"))
			expect("ignored though nobody changed it", "2", "1")
			w.asUser(t, "a", `{"data":{"count":"5"}}`)
			w.server.apply("one", bundle(present, "3", "1"))
			expect("kept as the user left it", "3", "5")

			w.server.apply("one", bundle(change, "3", "7"))
			expect("written with a new manifest", "3", "7")
			w.asUser(t, "a", `{"data":{"count":"8"}}`)
			w.restart(t)
			w.server.apply("one", bundle(change, "3", "7")) // a new generation with the same manifest
			expect("left alone while the manifest is the same", "3", "8")
		})
	}
}

// The agent applies an ignored list entry at the object's creation and leaves it out of later
// applies, as OCM's agent does: the next manifest removes the entry, unless another writer has set
// it, too.
func TestIgnoredEntriesOfListsAreLeftOutOfTheApply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deployment := func(image string) work.Bundle {
		b := manifests(
			json.RawMessage(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","namespace":"` + w.ns +
				`"},"spec":{"replicas":0,
			"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[
			{"name":"web","image":"` + image + `"},{"name":"kept","image":"` + image +
				`"},{"name":"dropped","image":"` + image + `"}]}}}}`))
		b.ManifestConfigs = []workv1.ManifestConfigOption{{
			ResourceIdentifier: workv1.ResourceIdentifier{Group: "apps", Resource: "deployments", Namespace: "*",
				Name: "*"},
			UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply,
				ServerSideApply: &workv1.ServerSideApplyConfig{Force: true, IgnoreFields: []workv1.IgnoreField{{
					Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPaths: []string{
						".spec.template.spec.containers[0]"},
					JSONPointers: []string{"/spec/template/spec/containers/1"}, JQPathExpressions: []string{
						`.spec.template.spec.containers[] | select(.name == "dropped")`},
				}}}},
		}}
		return b
	}
	images := func(u *unstructured.Unstructured) map[string]string {
		found := map[string]string{}
		containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			c := c.(map[string]any)
			found[c["name"].(string)] = c["image"].(string)
		}
		return found
	}
	w.server.apply("one", deployment("v1"))
	w.server.awaitApplied("one")
	if got, want := images(w.get(t, deployments, w.ns, "d")), map[string]string{"web": "v1", "kept": "v1",
		"dropped": "v1"}; !maps.Equal(got, want) {
		t.Errorf("made with %v, want %v", got, want)
	}
	user := []byte(
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"containers":[{"name":"kept",` +
			`"image":"user"}]}}}}`)
	if _, err := w.in(deployments, w.ns).Patch(t.Context(), "d", types.ApplyPatchType, user, metav1.PatchOptions{
		FieldManager: "user", Force: new(true)}); err != nil {
		t.Fatal(err)
	}
	w.server.apply("one", deployment("v2"))
	w.server.awaitApplied("one")
	if got, want := images(w.get(t, deployments, w.ns, "d")), map[string]string{"web": "v2",
		"kept": "user"}; !maps.Equal(got, want) {
		t.Errorf("changed to %v, want %v", got, want)
	}
}

func TestSSAConflictsAreReportedAndRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, configMaps, w.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
		"name": "a"}, "data": map[string]any{"k": "there"}})
	b := withStrategy(manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "b", "k", "1")), workv1.UpdateStrategy{
		Type: workv1.UpdateStrategyTypeServerSideApply})
	w.server.apply("one", b)
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	c := meta.FindStatusCondition(w.server.manifest("one", 0).Conditions, workv1.ManifestApplied)
	if c.Reason != workv1.AppliedManifestFailed ||
		!strings.HasPrefix(c.Message, "Failed to apply manifest: Apply failed with 1 conflict") {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	w.asUser(t, "a", `{"data":null}`) // the other one gives the field up
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionTrue)
}

// An owner that the manifest names counts for server-side apply only, and a
// work that begins to orphan an object takes its reference away at once.
func TestOrphanedObjectsLoseTheirOwnerReferenceAtOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range []workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate,
		workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeServerSideApply} {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t)
			b := withStrategy(manifests(configMap(w.ns, "a", "k", "1")), workv1.UpdateStrategy{Type: kind})
			w.server.apply("one", b)
			w.server.awaitApplied("one")
			uid := w.get(t, configMaps, w.ns, "a").GetUID()
			b.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
			w.server.apply("one", b)
			w.server.awaitApplied("one")
			if o := w.get(t, configMaps, w.ns, "a").GetOwnerReferences(); len(o) != 0 {
				t.Errorf("it is still owned: %v", o)
			}
			b.DeleteOption = nil
			w.server.apply("one", b)
			w.server.awaitApplied("one")
			if o := w.get(t, configMaps, w.ns, "a").GetOwnerReferences(); len(o) != 1 {
				t.Errorf("it is owned by %v", o)
			}
			b.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
			w.server.apply("one", b)
			w.server.awaitApplied("one")
			w.server.delete("one")
			w.server.awaitGone("one")
			if a := w.get(t, configMaps, w.ns, "a"); a.GetUID() != uid || len(a.GetOwnerReferences()) != 0 {
				t.Errorf("after the deletion: uid %s (was %s), owners %v", a.GetUID(), uid, a.GetOwnerReferences())
			}
		})
	}
}
