package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// uidOf returns the instance of an object, ownersOf the AppliedManifestWorks that own it.
func (w *world) uidOf(t *testing.T, name string) types.UID {
	return w.get(t, configMaps, w.ns, name).GetUID()
}

func ownersOf(u *unstructured.Unstructured) map[string]types.UID {
	owners := map[string]types.UID{}
	for _, r := range u.GetOwnerReferences() {
		owners[r.Name] = r.UID
	}
	return owners
}

// rename gives a work another name on its hub.
func (s *server) rename(id, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[id] = name
}

// An agent that named AppliedManifestWorks after the work's id is replaced by one that names them
// after the work: the objects get the new owner and stay, objects outside of the work are pruned,
// and nothing of the old name remains.
func TestAWorkIsTakenOverFromItsFormerName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	create := configMap(w.ns, "created", "k", "1")
	b := manifests(configMap(w.ns, "a", "k", "1"), configMap(w.ns, "gone", "k", "1"), create)
	b.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: w.ns, Name: "created"},
		UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly},
	}}
	w.server.apply("one", b)
	w.server.awaitApplied("one")
	w.awaitObject(t, appliedWorks, "", w.amw("one"), func(u *unstructured.Unstructured) bool {
		return len(appliedResourcesOf(u)) == 3
	})
	a, created := w.uidOf(t, "a"), w.uidOf(t, "created")

	// Its hub gives it a name from now on, and drops a manifest.
	w.agent.stop()
	w.server.rename("one", "shop")
	b.Manifests = []json.RawMessage{configMap(w.ns, "a", "k", "1"), create}
	w.server.apply("one", b)
	w.agent = startAgent(t, agentOptions(t, w.cluster, w.broker, w.consumer, w.dir))
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
	w.awaitGone(t, configMaps, w.ns, "gone")
	w.awaitObject(t, appliedWorks, "", w.amw("shop"), func(u *unstructured.Unstructured) bool {
		return len(appliedResourcesOf(u)) == 2
	})
	amw := w.get(t, appliedWorks, "", w.amw("shop"))
	if name, _, _ := unstructured.NestedString(amw.Object, "spec", "manifestWorkName"); name != "shop" ||
		amw.GetAnnotations()[workIDAnnotation] != "one" {
		t.Errorf("manifestWorkName %q, annotations %v", name, amw.GetAnnotations())
	}
	for name, uid := range map[string]types.UID{"a": a, "created": created} {
		u := w.get(t, configMaps, w.ns, name)
		if owners := ownersOf(u); u.GetUID() != uid || len(owners) != 1 || owners[amw.GetName()] != amw.GetUID() {
			t.Errorf("%s: uid %s (was %s), owners %v", name, u.GetUID(), uid, owners)
		}
	}

	// And back, to a hub that names works by their ids.
	w.agent.stop()
	w.server.rename("one", "one")
	w.server.apply("one", b)
	w.agent = startAgent(t, agentOptions(t, w.cluster, w.broker, w.consumer, w.dir))
	w.awaitGone(t, appliedWorks, "", w.amw("shop"))
	w.server.awaitApplied("one")
	if w.uidOf(t, "a") != a || w.uidOf(t, "created") != created {
		t.Error("the way back made an object anew")
	}
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
	w.awaitGone(t, configMaps, w.ns, "created")
	w.awaitGone(t, appliedWorks, "", w.amw("one"))
}

// The name of a work is another's text: it takes nothing from another work.
func TestAWorkDoesNotTakeTheNameOfAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.rename("two", "one") // the id of the first is the name of the second
	w.server.apply("one", manifests(configMap(w.ns, "a", "k", "1")))
	w.server.awaitApplied("one")
	w.server.apply("two", manifests(configMap(w.ns, "b", "k", "1")))
	w.server.awaitApplied("two")
	w.awaitObject(t, appliedWorks, "", w.amw("two"), func(u *unstructured.Unstructured) bool {
		return len(appliedResourcesOf(u)) == 1
	})
	w.server.delete("two")
	w.server.awaitGone("two")
	w.awaitGone(t, configMaps, w.ns, "b")
	w.get(t, configMaps, w.ns, "a")
}

// Two agents with different hubs share a cluster and an object: each keeps its
// owner reference through the other's writes, and the object stays until the
// last of them gives it up.
func TestTwoAgentsWithDifferentHubsShareAnObject(t *testing.T) {
	t.Parallel()
	first := newWorld(t)
	second := newSite(t, first.cluster, first.ns, first.consumer[:40]+"-2")
	second.agent = startAgent(t, agentOptions(t, second.cluster, second.broker, second.consumer, second.dir))
	second.agent.stop() // the other one is not known when this one first applies
	shared := func(extra string) json.RawMessage { return configMap(first.ns, "shared", "k", "1", "extra", extra) }
	owned := func(by ...*world) {
		t.Helper()
		first.awaitObject(t, configMaps, first.ns, "shared", func(u *unstructured.Unstructured) bool {
			owners := ownersOf(u)
			for _, w := range by {
				if owners[w.amw("one")] == "" {
					return false
				}
			}
			return len(owners) == len(by)
		})
	}
	first.server.apply("one", manifests(shared("1")))
	first.server.awaitApplied("one")
	owned(first)
	uid := first.uidOf(t, "shared")
	second.agent = startAgent(t, agentOptions(t, second.cluster, second.broker, second.consumer, second.dir))
	second.server.apply("one", manifests(shared("1")))
	second.server.awaitApplied("one")
	owned(first, second)

	// While the one is away the other writes.
	first.agent.stop()
	second.server.apply("one", manifests(shared("2")))
	second.server.awaitApplied("one")
	owned(first, second)
	second.server.delete("one")
	second.server.awaitGone("one")
	owned(first)
	first.agent = startAgent(t, agentOptions(t, first.cluster, first.broker, first.consumer, first.dir))
	first.server.apply("one", manifests(shared("3")))
	first.server.awaitApplied("one")
	owned(first)
	if first.uidOf(t, "shared") != uid {
		t.Error("the object was made anew")
	}
	first.server.delete("one")
	first.server.awaitGone("one")
	first.awaitGone(t, configMaps, first.ns, "shared")
}

// A work may name any field manager, as with OCM's agent. The agent checks its fields for drift
// like its own, also after a restart.
func TestAWorkMayNameAnyFieldManager(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := withStrategy(manifests(configMap(w.ns, "a", "k", "1")), workv1.UpdateStrategy{
		Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true,
			FieldManager: "cl-maestro"},
	})
	w.server.apply("one", b)
	w.server.awaitApplied("one")
	managers := map[string]bool{}
	for _, f := range w.get(t, configMaps, w.ns, "a").GetManagedFields() {
		managers[f.Manager] = true
	}
	if len(managers) != 1 || !managers["cl-maestro"] {
		t.Errorf("managed by %v", managers)
	}
	repaired := func(k string) {
		t.Helper()
		w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return dataOf(u, "k") == k })
	}
	w.asUser(t, "a", `{"data":{"k":"user"}}`)
	repaired("1")
	version := w.get(t, configMaps, w.ns, "a").GetResourceVersion()
	w.restart(t)
	w.server.apply("two", manifests(configMap(w.ns, "b", "k", "1")))
	w.server.awaitApplied("two")
	if got := w.get(t, configMaps, w.ns, "a").GetResourceVersion(); got != version {
		t.Error("a restart wrote the object")
	}
	w.asUser(t, "a", `{"data":{"k":"user"}}`)
	repaired("1")

	// The API server refuses the name, and the status has its error.
	b.ManifestConfigs[0].UpdateStrategy.ServerSideApply.FieldManager = strings.Repeat("x", 129)
	w.server.apply("one", b)
	w.server.awaitCondition("one", workv1.WorkApplied, metav1.ConditionFalse)
	if c := meta.FindStatusCondition(w.server.manifest("one", 0).Conditions, workv1.ManifestApplied); !strings.Contains(
		c.Message, "fieldManager") {
		t.Errorf("Applied: %s", c.Message)
	}
	w.server.delete("one")
	w.server.awaitGone("one")
	w.awaitGone(t, configMaps, w.ns, "a")
}
