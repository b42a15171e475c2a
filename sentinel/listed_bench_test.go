package sentinel

import (
	"strings"
	"testing"
	"time"

	"atoll.dev/store"
)

// idleSince is the time of the last report of idleDocument.
var idleSince = time.Date(2026, 11, 22, 10, 0, 0, 123456000, time.UTC)

// idleDocument returns a reconciled cluster as CLM stores it, with the reports of three adapters.
func idleDocument(t testing.TB) store.Document {
	at := idleSince
	condition := func(kind string) map[string]any {
		return map[string]any{"type": kind, "status": "True", "reason": "AsExpected", "observed_generation": 1,
			"message": "on management cluster management-01", "last_updated_time": at, "last_transition_time": at,
			"created_time": at}
	}
	var conditions, reports []any
	for _, adapter := range []string{"placement", "pull-secret", "hosted-cluster"} {
		conditions = append(conditions, condition(adapter+"Successful"))
		reports = append(reports, map[string]any{"adapter": adapter, "observed_generation": 1, "created_time": at,
			"last_report_time": at, "data": map[string]any{"target_cluster": "management-01"},
			"conditions": []any{condition("Applied"), condition("Available"), condition("Health")}})
	}
	conditions = append(conditions, condition("Reconciled"), condition("LastKnownReconciled"))
	wire := map[string]any{
		"id": "0199a0b1-0000-7000-8000-000000000001", "kind": "Cluster", "name": "sample", "generation": 1,
		"href": "/api/hyperfleet/v1/clusters/0199a0b1-0000-7000-8000-000000000001", "created_by": "ada",
		"labels": map[string]any{"shard": "1"}, "spec": map[string]any{"note": strings.Repeat("x", 500)},
		"status": map[string]any{"conditions": conditions}, "created_time": at, "updated_time": at, "updated_by": "ada",
	}
	return store.Document{Kind: cluster, ID: wire["id"].(string), Version: 5, Generation: 1, Wire: encoded(t, wire),
		Status: encoded(t, map[string]any{"conditions": conditions, "reports": reports})}
}

// BenchmarkDecideListed measures the decision about one document of a list: what the start of a replica costs for
// each resource beside reading it.
func BenchmarkDecideListed(b *testing.B) {
	config := DefaultConfig("clusters")
	compiled, err := config.Compile()
	s := &Sentinel{
		watched: map[store.Kind]*watchedKind{cluster: {kind: Kind{Kind: cluster}, rules: must(b, compiled, err)}},
	}
	doc := idleDocument(b)
	b.SetBytes(int64(len(doc.Wire) + len(doc.Status)))
	b.ReportAllocs()
	now := idleSince.Add(10 * time.Minute)
	for b.Loop() {
		if x, _, _ := s.decideListed(b.Context(), &doc, 1, now); x.after.Wanted {
			b.Fatal("an idle cluster needs an event")
		}
	}
}
