package agent

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
)

// appliedResourcesOf returns the list of resources of an AppliedManifestWork.
func appliedResourcesOf(u *unstructured.Unstructured) []resourceRef {
	a, err := new(kube).amwOf(u)
	if err != nil {
		panic(err.message)
	}
	return a.applied
}

func TestDeletionModes(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
