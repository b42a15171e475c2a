package adapter

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// Deletions follow the reference's order: a parent waits until its child is removed, within one
// execution if nothing holds the child.
func TestDeletionsFollowTheirConditions(t *testing.T) {
	api := newCLM(t, map[string]string{"GET " + clusterPath: clusterAnswer})
	s := newShelf()
	e := newEngine(t, namespaceTask(t), api, s)
	e.Run(t.Context(), clusterEvent(3))
	api.answers["GET "+clusterPath] = func() (int, string) {
		return 200, strings.Replace(clusterAnswer, `"id"`, `"deleted_time":"2026-03-01T11:00:00Z","id"`, 1)
	}
	s.linger = true
	if r := e.Run(t.Context(), clusterEvent(4)); r.Resources[1].Operation != Deleted ||
		r.Resources[0].Operation == Deleted {
		t.Errorf("the engine deletes the namespace before its objects: %+v", r.Resources)
	}
	if got := conditionsOf(api.report(t))[3]; got != "Finalized=False(Deletion)" {
		t.Error(got)
	}
	s.linger = false
	e.Run(t.Context(), clusterEvent(4)) // the map goes; the namespace comes first in the list
	r := e.Run(t.Context(), clusterEvent(4))
	if len(s.objects) != 0 || r.Resources[0].Operation != Deleted {
		t.Errorf("%v %+v", s.objects, r.Resources)
	}
	if got := conditionsOf(api.report(t))[3]; got != "Finalized=True(Deletion)" {
		t.Error(got)
	}
}

// waitingTask deletes a namespace after the objects in it.
const waitingTask = `
params:
- {name: clusterId, source: event.id, required: true}
- {name: cluster, required: true, source: {api_call: {method: GET, url: "/clusters/{{ .clusterId }}"}}}
- {name: is_deleting, source: {expression: has(cluster.deleted_time)}}
resources:
- name: space
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "{{ .clusterId }}", annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {by_name: "{{ .clusterId }}"}
  lifecycle: {delete: {when: {expression: "is_deleting && !resources.?inside.hasValue()"}}}
- name: inside
  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: inside, namespace: "{{ .clusterId }}", annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {namespace: "{{ .clusterId }}", by_name: inside}
  lifecycle: {delete: {when: {expression: is_deleting}}}
post:
  payloads:
  - name: status
    build:
      adapter: cl-test
      conditions:
      - type: Finalized
        status: {expression: 'is_deleting && adapter.executionStatus == "success" && !adapter.resourcesSkipped && !resources.?space.hasValue() && !resources.?inside.hasValue() ? "True" : "False"'}
        reason: Deletion
  post_actions: [{name: report, api_call: {method: PUT, url: "/clusters/{{ .clusterId }}/statuses", body: "{{ .status }}"}}]
`

// After DELETE of a resource no object of it is created again, and an object that another writer
// deleted counts as finalized.
func TestObjectsOfADeletedResourceAreNotCreatedAgain(t *testing.T) {
	deleted := strings.Replace(clusterAnswer, `"id":"x"`, `"deleted_time":"2026-03-01T11:00:00Z","id":"`+clusterID+`"`, 1)
	api := newCLM(t, map[string]string{"GET " + clusterPath: strings.Replace(clusterAnswer, `"id":"x"`,
		`"id":"`+clusterID+`"`, 1)})
	m := newShelf()
	e := newEngine(t, waitingTask, api, m)
	finalized := func() string { return conditionsOf(api.report(t))[0] }
	if r := e.Run(t.Context(), clusterEvent(1)); r.Err() != nil || len(m.objects) != 2 {
		t.Fatalf("%v, %d objects", r.Err(), len(m.objects))
	}
	space := Object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": clusterID}}
	inside := Object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "inside",
		"namespace": clusterID}}
	vanish := func(o Object) {
		t.Helper()
		if err := m.Delete(t.Context(), Deletion{Object: o}); err != nil {
			t.Fatal(err)
		}
	}
	vanish(space)
	if r := e.Run(t.Context(), clusterEvent(1)); r.Err() != nil || len(m.objects) != 2 {
		t.Errorf("drift of a resource that is not deleted is not repaired: %v, %d objects", r.Err(), len(m.objects))
	}
	api.answers["GET "+clusterPath] = func() (int, string) { return 200, deleted }
	vanish(space) // while its turn has not come
	r := e.Run(t.Context(), clusterEvent(2))
	if r.Err() != nil || len(m.objects) != 0 || r.Resources[0].Operation != Skipped {
		t.Errorf("%v, %d objects, %+v", r.Err(), len(m.objects), r.Resources)
	}
	if got := finalized(); got != "Finalized=True(Deletion)" {
		t.Error(got)
	}
	vanish(inside)
	if e.Run(t.Context(), clusterEvent(2)); len(m.objects) != 0 || finalized() != "Finalized=True(Deletion)" {
		t.Errorf("%d objects, %s", len(m.objects), finalized())
	}
}

// terminating is a shelf with namespaces under deletion.
type terminating struct{ *shelf }

func (s terminating) Apply(ctx context.Context, a Application) (Applied, error) {
	if identify(a.Object).Kind == "Namespace" {
		return Applied{}, fmt.Errorf("the object of this name: %w", ErrTerminating)
	}
	return s.shelf.Apply(ctx, a)
}

// A run waits for objects under deletion: that is no failure with an early retry, and later objects
// are not applied either.
func TestARunWaitsForObjectsUnderDeletion(t *testing.T) {
	api := newCLM(t, map[string]string{"GET " + clusterPath: strings.Replace(clusterAnswer, `"id":"x"`,
		`"id":"`+clusterID+`"`, 1)})
	s := terminating{newShelf()}
	r := newEngine(t, waitingTask, api, s).Run(t.Context(), clusterEvent(1))
	if r.Err() != nil || !r.Skipped || !strings.Contains(r.SkipReason, "still being deleted") ||
		len(r.Resources) != 1 || len(s.objects) != 0 || !r.Reported {
		t.Errorf("%+v %v", r, r.Err())
	}
}

// unsure is a shelf whose absences are unconfirmed.
type unsure struct {
	*shelf
	doubts bool
}

func (u *unsure) Unconfirmed(_ context.Context, s Search) (Object, error) {
	if !u.doubts {
		return nil, nil
	}
	return Object{"apiVersion": s.APIVersion, "kind": s.Kind, "metadata": map[string]any{"name": s.Name}}, nil
}

func TestI9AnUnconfirmedAbsenceIsNotFinal(t *testing.T) {
	api := newCLM(t, map[string]string{"GET " + clusterPath: strings.Replace(clusterAnswer, `"id"`,
		`"deleted_time":"2026-03-01T11:00:00Z","id"`, 1)})
	u := &unsure{newShelf(), true}
	e := newEngine(t, namespaceTask(t), api, u)
	if r := e.Run(t.Context(), clusterEvent(4)); r.Status != Success {
		t.Errorf("%+v %v", r, r.Err())
	}
	if got := conditionsOf(api.report(t))[3]; got != "Finalized=False(Deletion)" {
		t.Error(got)
	}
	u.doubts = false
	e.Run(t.Context(), clusterEvent(4))
	if got := conditionsOf(api.report(t))[3]; got != "Finalized=True(Deletion)" {
		t.Error(got)
	}
}

// A deletion that waits for another one waits while the absence of the other is unconfirmed (I9).
func TestI9DeletionsWaitForAnUnconfirmedAbsence(t *testing.T) {
	const task = `
params:
- {name: clusterId, source: event.id, required: true}
resources:
- name: second
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "second-{{ .clusterId }}", annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {by_name: "second-{{ .clusterId }}"}
  lifecycle: {delete: {when: {expression: "!has(resources.first)"}}}
- name: first
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "first-{{ .clusterId }}", annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {by_name: "first-{{ .clusterId }}"}
  lifecycle: {delete: {when: {expression: "true"}}}
`
	for _, doubts := range []bool{true, false} {
		u := &unsure{newShelf(), doubts}
		second := Object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "second-c1",
			"annotations": map[string]any{"hyperfleet.io/generation": "1"}}}
		if _, err := u.Apply(t.Context(), Application{Object: second, Generation: 1}); err != nil {
			t.Fatal(err)
		}
		newEngine(t, task, newCLM(t, nil), u).Run(t.Context(), Event{ID: "c1", Kind: "Cluster", Generation: 1})
		if left := len(u.objects); (left == 1) != doubts {
			t.Errorf("doubts %v: %v", doubts, u.objects)
		}
	}
}

// A resource whose condition does not hold takes no part in a run: its object is neither found, applied nor deleted,
// and nothing counts as skipped.
func TestAResourceTakesPartOnItsCondition(t *testing.T) {
	task := strings.Replace(waitingTask, "- name: inside\n",
		"- name: inside\n  when: {expression: 'cluster.generation > 3'}\n", 1)
	answer := clusterAnswer
	api := newCLM(t, nil)
	api.answers["GET "+clusterPath] = func() (int, string) { return 200, answer }
	s := newShelf()
	e := newEngine(t, task, api, s)
	r := e.Run(t.Context(), clusterEvent(3))
	if len(s.objects) != 1 || r.Skipped || r.Resources[1].Status != Skip || r.Err() != nil {
		t.Errorf("without the condition: %v, skipped %t, %+v, %v", s.objects, r.Skipped, r.Resources, r.Err())
	}
	answer = strings.Replace(clusterAnswer, `"generation":3`, `"generation":4`, 1)
	if r = e.Run(t.Context(), clusterEvent(4)); len(s.objects) != 2 || r.Err() != nil {
		t.Errorf("with it: %v, %+v, %v", s.objects, r.Resources, r.Err())
	}
	answer = strings.Replace(clusterAnswer, `"id"`, `"deleted_time":"2026-03-01T11:00:00Z","id"`, 1)
	if r = e.Run(t.Context(), clusterEvent(3)); len(s.objects) != 1 || r.Resources[1].Operation == Deleted {
		t.Errorf("a deletion without it: %v, %+v", s.objects, r.Resources)
	}
}
