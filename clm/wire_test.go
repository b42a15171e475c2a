package clm

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// Hand-written code builds the wire form; it must equal encoding/json's output for the contract's
// type, also with empty members.
func TestTheWireFormEqualsTheContractType(t *testing.T) {
	registry, err := NewRegistry([]Entity{{Kind: "Cluster", Plural: "clusters", NameMinLen: 3, NameMaxLen: 54,
		RequiredAdapters: []cluster.Adapter{"dns", "validation"}}})
	if err != nil {
		t.Fatal(err)
	}
	e := registry.entities[0]
	at := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	for name, spec := range map[string]declared{
		"empty": {Spec: json.RawMessage(`{}`), UpdatedTime: at},
		"full": {Spec: json.RawMessage(`{"a": "<&> é\",\"status\":{", "n": 1e3, "b":1,"status":{"x":1}}`), Labels: api.Labels{"k": "v"},
			Tenancy: map[string]string{"t": "1"},
			Owner:   &api.ObjectReference{ID: "o", Kind: "Fleet", Href: "/fleets/o"}, References: api.References{
				"r": {{ID: "x", Kind: "Channel", Href: "/c/x"}}},
			CreatedBy: "a\nb", UpdatedBy: "b", DeletedBy: "c", UpdatedTime: at},
	} {
		for _, conditions := range [][]status.Condition{{}, {
			{Type: "Reconciled", Status: status.False, CreatedTime: at, LastUpdatedTime: at, LastTransitionTime: at},
			{Type: "DnsSuccessful", Status: status.True, Reason: status.Given("R"), Message: status.Given("\"m\""), ObservedGeneration: 2,
				CreatedTime: at, LastUpdatedTime: at, LastTransitionTime: at},
		}} {
			d := store.Document{Kind: "Cluster", ID: "id", Name: "name", Generation: 2, CreatedAt: at}
			if name == "full" {
				d.DeletedAt = &at
			}
			report := status.Report{Adapter: "dns", Generation: 2, ObservedAt: at, Conditions: []status.Reported{
				{Type: "Available", Status: status.False, LastTransitionTime: at}}}
			if err := encode(&d, spec, observed{Conditions: conditions, Reports: []status.Report{report}}); err != nil {
				t.Fatal(err)
			}
			stored, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			if same, err := store.SameJSON(d.Spec, stored); err != nil || !same {
				t.Errorf("%s: the stored spec is\n%s, and that of encoding/json\n%s", name, d.Spec, stored)
			}
			fresh, err := e.render(d)
			if err != nil {
				t.Fatal(err)
			}
			d.Decoded = nil // as it comes from the database
			wire, err := e.render(d)
			if err != nil {
				t.Fatal(err)
			}
			if string(fresh) != string(wire) {
				t.Errorf("%s: a new resource is shown as\n%s, and a stored one as\n%s", name, fresh, wire)
			}
			tail, err := e.renderTail(d)
			if err != nil || string(wire[wireHead(wire):]) != string(tail) {
				t.Errorf("%s: the tail is\n%s, %v, of\n%s", name, tail, err, wire)
			}
			var r api.Resource
			decoder := json.NewDecoder(bytes.NewReader(wire))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&r); err != nil {
				t.Fatalf("%v: %s", err, wire)
			}
			again, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if same, err := store.SameJSON(wire, again); err != nil || !same {
				t.Errorf("%s:\n%s\nis not\n%s", name, wire, again)
			}
			if len(r.Status.Awaiting) != 2 || len(r.Status.Conditions) != len(conditions) {
				t.Errorf("%s: %s", name, wire)
			}
		}
	}
}
