package fleet

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	api "atoll.dev/api/fleet"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err == nil {
		err = doc.Validate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestDocumentAndRoutesAreTheSame(t *testing.T) {
	var documented []string
	for path, item := range document(t).Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	slices.Sort(documented)
	m := rest.NewMux()
	(&Fleet{}).Routes(m, func(context.Context) map[string]string { return nil })
	if diff := cmp.Diff(documented, m.Routes()); diff != "" {
		t.Error(diff)
	}
}

// Answers have the documented schemas without further members, and the metrics count them.
func TestAnswersMatchTheDocument(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	id := b.cluster("abc", `{}`)
	schemas := document(t).Components.Schemas
	conforms := func(name string, v any) {
		t.Helper()
		schema := schemas[name].Value
		no := false
		schema.AdditionalProperties = openapi3.AdditionalProperties{Has: &no}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var decoded any
		if err := json.Unmarshal(text, &decoded); err != nil {
			t.Fatal(err)
		}
		if err := schema.VisitJSON(decoded); err != nil {
			t.Errorf("%s: %v in %s", name, err, text)
		}
	}
	b.mc("full", `{"capacity":{"planes":0}}`, nil)
	conforms("Placement", b.requestJSON("/clusters/"+id+"/placement", "POST"))
	b.mc("one", `{"capacity":{"planes":3},"versions":["1.36.3"]}`, map[string]string{"a": "b"})
	conforms("Placement", b.requestJSON("/clusters/"+id+"/placement", "POST"))
	conforms("Placement", b.requestJSON("/clusters/"+id+"/placement", "GET"))
	conforms("UsageList", b.requestJSON("/managementclusters/usage", "GET"))
	conforms("RebalancePlan", b.requestJSON("/managementclusters/rebalance?limit=3&except=a&except=b", "GET"))
	usage, err := b.Usage(ctx)
	if err != nil || len(usage) != 2 {
		t.Fatalf("%+v, %v", usage, err)
	}
	conforms("Usage", b.requestJSON("/managementclusters/"+usage[1].ID+"/usage", "GET"))
	b.eventually("the list of a management cluster has its cluster, and that of the other none", func() bool {
		conforms("PlacedClusters", b.requestJSON("/managementclusters/placements?management_cluster=one", "GET"))
		on, err := b.PlacedOn(ctx, "one")
		others, otherErr := b.PlacedOn(ctx, "full")
		return err == nil && otherErr == nil && len(on) == 1 && on[0] == cluster.ID(id) && len(others) == 0
	})
	if _, err := b.PlacedOn(ctx, "none"); remote.StatusOf(err) != http.StatusNotFound {
		t.Errorf("the clusters of a management cluster that does not exist: %v", err)
	}

	want := map[string]float64{"waiting": 1, "placed": 1, "capacity full planes": 0, "capacity one planes": 3,
		"reserved full planes": 0, "reserved one planes": 1}
	b.eventually("the metrics have the expected values", func() bool { return cmp.Equal(b.figures(), want) })
}

// figures returns the metrics that tests compare.
func (b *testRegion) figures() map[string]float64 {
	b.t.Helper()
	families, err := b.fleet.opts.Metrics.(*prometheus.Registry).Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			label := func(name string) string {
				for _, l := range m.GetLabel() {
					if l.GetName() == name {
						return l.GetValue()
					}
				}
				return ""
			}
			switch f.GetName() {
			case "atoll_fleet_placements_total":
				found[label("outcome")] = m.GetCounter().GetValue()
			case "atoll_fleet_capacity":
				found["capacity "+label("management_cluster")+" "+label("resource")] = m.GetGauge().GetValue()
			case "atoll_fleet_reserved":
				found["reserved "+label("management_cluster")+" "+label("resource")] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}
