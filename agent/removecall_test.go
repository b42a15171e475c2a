package agent

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/work"
)

// An observation of a watch may be stale. It never makes the agent leave an object that no other
// work owns.
func TestI9AStaleObservationLeavesNoObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, id := range []string{"one", "two"} {
		w.server.apply(work.ID(id), manifests(configMap(w.ns, "a", "k", "1")))
		w.server.awaitApplied(work.ID(id))
	}
	w.awaitObject(t, configMaps, w.ns, "a", func(u *unstructured.Unstructured) bool { return len(ownersOf(u)) == 2 })
	w.agent.stop() // its calls are made here
	object := w.get(t, configMaps, w.ns, "a")
	seen := observeMetadata(object, nil)
	removal := func(id work.ID) effRemove {
		return effRemove{
			id: work.ID(id), key: objectKey{configMaps, w.ns, "a"}, uid: object.GetUID(), amw: amwName(id), obs: seen,
			owner: w.get(t, appliedWorks, "", w.amw(id)).GetUID(),
		}
	}

	// Both removals see two owners. The first one releases the object.
	one, two := removal("one"), removal("two")
	if done := w.agent.kube.remove(t.Context(), one).(evRemoved); done.err != nil || done.outcome != removalGone {
		t.Fatalf("work one: %+v", done)
	}
	if owners := ownersOf(w.get(t, configMaps, w.ns, "a")); len(owners) != 1 || owners[w.amw("two")] == "" {
		t.Fatalf("the object has the owners %v, want work two alone", owners)
	}
	// The second work finds no other owner and deletes the object.
	if done := w.agent.kube.remove(t.Context(), two).(evRemoved); done.err != nil || done.outcome != removalDeleting {
		t.Errorf("work two: %+v", done)
	}
	w.awaitGone(t, configMaps, w.ns, "a")
}

// Two works share objects and are deleted in the same moment.
func TestI9WorksWithSharedObjectsAreDeletedConcurrently(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shared := work.Bundle{}
	for i := range 20 {
		shared.Manifests = append(shared.Manifests, configMap(w.ns, fmt.Sprint("s", i), "k", "1"))
	}
	ids := []work.ID{"one", "two", "three"}
	for _, id := range ids {
		w.server.apply(id, shared)
		w.server.awaitApplied(id)
	}
	for _, id := range ids {
		w.server.delete(id)
	}
	for _, id := range ids {
		w.server.awaitGone(id)
	}
	w.await(t, "the end of all shared objects", configMaps, w.ns, func(there map[string]*unstructured.Unstructured) bool {
		for name := range there {
			if name[0] == 's' {
				return false
			}
		}
		return true
	})
}

func TestTheNextActionOfARemoval(t *testing.T) {
	const own = types.UID("own")
	mine := instance{exists: true, uid: "u", ours: true}
	shared := mine
	shared.othersOwnIt = true
	deleting := mine
	deleting.deleting = true
	foreign := instance{exists: true, uid: "u", othersOwnIt: true}
	replaced := mine
	replaced.uid = "v"
	for name, test := range map[string]struct {
		call        effRemove
		in          instance
		old, recent removalAction
	}{
		"the work alone owns it":    {effRemove{uid: "u", owner: own}, mine, actionDelete, actionDelete},
		"its deletion has begun":    {effRemove{uid: "u", owner: own}, deleting, actionRead, actionAwait},
		"another work owns it, too": {effRemove{uid: "u", owner: own}, shared, actionRead, actionRelease},
		"the work orphans it":       {effRemove{uid: "u", owner: own, release: true}, mine, actionRead, actionRelease},
		"the work does not own it":  {effRemove{uid: "u", owner: own}, foreign, actionRead, actionLeave},
		"another instance":          {effRemove{uid: "u", owner: own}, replaced, actionRead, actionLeave},
		"gone":                      {effRemove{uid: "u", owner: own}, instance{}, actionRead, actionLeave},
		"no owner and no instance":  {effRemove{}, mine, actionRead, actionLeave},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.call.next(test.in); got != test.old {
				t.Errorf("from a watch: %d, want %d", got, test.old)
			}
			test.in.isFresh = true
			if got := test.call.next(test.in); got != test.recent {
				t.Errorf("from the API server: %d, want %d", got, test.recent)
			}
		})
	}
}
