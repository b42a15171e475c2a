package agent

import (
	"encoding/json"
	"testing"
	"time"
)

// TestFrequentChangesOfKindsBlockNoWork: a CustomResourceDefinition changes during each
// discovery. The work applies its other manifest, and discovery pauses.
func TestFrequentChangesOfKindsBlockNoWork(t *testing.T) {
	c := newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", sendWindow: 4})
	now, applies, discoveries := noon, 0, 0
	var run func(effects []effect)
	run = func(effects []effect) {
		for _, e := range effects {
			switch e := e.(type) {
			case effPersist:
				if e.then != nil {
					run(c.step(e.then, now))
				}
			case effDiscover:
				if e.gvk.Kind == "ConfigMap" {
					run(c.step(evMapped{gvk: e.gvk, gvr: configMaps, namespaced: true}, now))
					break
				}
				if discoveries++; discoveries > 100 {
					t.Fatal("discovery runs without a pause")
				}
				run(c.step(evKindsChanged{}, now))
				run(c.step(evMapped{gvk: e.gvk, err: &opError{kind: errNoKind, message: "no such kind"}}, now))
				run(c.step(evKindsChanged{}, now))
			case effCreateAMW:
				run(c.step(evAMWDone{id: e.id, op: amwCreate, name: e.name, amw: &amwState{name: e.name, uid: "amw",
					finalizers: []string{amwFinalizer}}}, now))
			case effApply:
				applies++
			}
		}
	}
	data, err := json.Marshal(manifests(configMap("ns", "a", "k", "1"),
		json.RawMessage(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x","namespace":"ns"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSpec(spec{ID: "one", Generation: 1, Source: "maestro", Metadata: "{}", Received: now}, data)
	if err != nil {
		t.Fatal(err)
	}
	run(c.step(evAMWsSynced{}, now))
	run(c.step(evSpec{spec: s, ack: func() {}}, now))
	if applies != 1 || discoveries != 1 {
		t.Fatalf("%d applies, %d discoveries; want one of each", applies, discoveries)
	}
	now = noon.Add(kindsSettle - time.Millisecond)
	run(c.step(evKindsChanged{}, now))
	if discoveries != 1 {
		t.Errorf("%d discoveries before the pause ends", discoveries)
	}
	now = noon.Add(kindsSettle)
	run(c.step(evTick{}, now))
	if discoveries != 2 {
		t.Errorf("%d discoveries after the pause, want 2", discoveries)
	}
}
