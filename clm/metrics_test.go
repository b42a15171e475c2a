package clm

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// figures are the metrics of a registry: name and labels without component and
// version, which all of hyperfleet-api's have.
func figures(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			own := 0
			for _, l := range m.Label {
				if n := l.GetName(); n == "component" && l.GetValue() == "api" || n == "version" &&
					l.GetValue() == "v7" {
					own++
				} else {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			if own != 2 {
				t.Errorf("%s has no component and version: %v", f.GetName(), m.Label)
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			got[strings.TrimPrefix(f.GetName(), "hyperfleet_")+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return got
}

func TestMetricsHaveTheNamesOfHyperFleet(t *testing.T) {
	reg := prometheus.NewRegistry()
	registry, err := ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), DatabaseOptions{DSN: pgtest.DSN(t), Registry: registry, Metrics: reg, Version: "v7",
		Adapt: store.Options.Patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Database: db, HTTP: l, Version: "v7", Identify: claimed, Metrics: reg,
		Stuck: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	testsite.Run(t, "CLM", s.Run)
	a := &testAPI{t: t, server: s, base: "http://" + l.Addr().String(), caller: Caller{Name: "tester@example.com"}}

	one, two := a.cluster("one"), a.cluster("two")
	a.do("POST", "/clusters/"+two+"/nodepools", `{"kind":"NodePool","name":"pool","spec":{}}`).want(201)
	a.do("PATCH", "/clusters/"+one, `{"labels":{"a":"b"}}`).want(200) // unreconciled already
	a.report("/clusters/"+one, "dns", 2, "True", "").want(201)
	a.report("/clusters/"+one, "validation", 2, "True", "").want(201)
	a.do("PATCH", "/clusters/"+one, `{"labels":{"a":"c"}}`).want(200) // was reconciled
	a.report("/clusters/"+one, "dns", 3, "True", "").want(201)
	a.report("/clusters/"+one, "validation", 3, "True", "").want(201)
	a.do("DELETE", "/clusters/"+two, "").want(202)
	a.do("GET", "/clusters/"+one, "").want(200)
	a.do("GET", "/clusters/nope", "").want(404)
	a.do("BREW", "/clusters/nope/made/up", "")

	// The spans of requests end after their answers are there.
	want := map[string]float64{
		"api_requests_total{code=201,method=POST,path=/api/hyperfleet/v1/clusters}":                         2,
		"api_requests_total{code=201,method=POST,path=/api/hyperfleet/v1/clusters/-/nodepools}":             1,
		"api_requests_total{code=200,method=PATCH,path=/api/hyperfleet/v1/clusters/-}":                      2,
		"api_requests_total{code=404,method=GET,path=/api/hyperfleet/v1/clusters/-}":                        1,
		"api_requests_total{code=404,method=other,path=-}":                                                  1,
		"api_request_duration_seconds{code=200,method=GET,path=/api/hyperfleet/v1/clusters/-}":              1,
		"api_reconciliation_started_total{is_delete=false,resource_type=cluster}":                           3,
		"api_reconciliation_started_total{is_delete=false,resource_type=nodepool}":                          1,
		"api_resource_pending_reconciliation{is_delete=false,resource_type=cluster}":                        0,
		"api_resource_pending_reconciliation{is_delete=true,resource_type=cluster}":                         1,
		"api_resource_pending_reconciliation{is_delete=true,resource_type=nodepool}":                        1,
		"api_resource_pending_reconciliation_stuck{is_delete=true,resource_type=cluster}":                   1,
		"api_resource_pending_reconciliation_stuck{is_delete=false,resource_type=nodepool}":                 0,
		"api_resource_pending_reconciliation_stuck_duration_seconds{is_delete=false,resource_type=cluster}": 0,
	}
	got := figures(t, reg)
	for got["api_requests_total{code=404,method=other,path=-}"] == 0 ||
		got["api_resource_pending_reconciliation{is_delete=true,resource_type=nodepool}"] == 0 {
		a.do("GET", "/channels", "")
		got = figures(t, reg)
	}
	for name, n := range want {
		if have, there := got[name]; !there || have != n {
			t.Errorf("%s is %v, want %v", name, have, n)
		}
	}
	if n := got["api_resource_pending_reconciliation_stuck_duration_seconds{is_delete=true,"+
		"resource_type=cluster}"]; n <= 0 {
		t.Errorf("stuck for %v s", n)
	}
	if got["db_connections_open{}"] < 1 {
		t.Errorf("%v connections", got["db_connections_open{}"])
	}
	queries, info := 0.0, false
	for name, n := range got {
		if strings.HasPrefix(name, "db_query_duration_seconds{") {
			queries += n
		}
		info = info || strings.HasPrefix(name, "api_build_info{") && n == 1
	}
	if queries < 10 || !info {
		t.Errorf("%v statements, build info %v: %v", queries, info, got)
	}
}

func TestRequestMetricsHaveFewPaths(t *testing.T) {
	for route, want := range map[string]string{
		"": "-", "GET /api/hyperfleet": "/api/hyperfleet",
		"PUT /api/hyperfleet/v1/clusters/{parent_id}/nodepools/{id}/statuses": "/api/hyperfleet/v1/clusters/-/nodepools/-/statuses",
	} {
		is(t, fmt.Sprintf("the path of %q", route), pathOf(route), want)
	}
}
