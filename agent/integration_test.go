package agent

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
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
		refs, _, _ := unstructured.NestedSlice(u.Object, "status", "appliedResources")
		return len(refs) == 1 && refs[0].(map[string]any)["uid"] == string(a.GetUID())
	})

	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
}

func TestQuick(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		id := "w" + string(rune('a'+i))
		start := time.Now()
		w.server.apply(id, manifests(configMap(w.ns, id, "k", "1")))
		w.server.awaitApplied(id)
		b := w.server.bundles[id]
		t.Log(time.Since(start), b.history, b.ext["atollreceivedat"], b.ext["atollappliedat"])
	}
}
