package clm

import (
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/trace"
	"atoll.dev/internal/tracetest"
)

// A generation stores the trace of the request that made it, and of no other: an equal PATCH and
// reports of adapters have their own traces. No answer shows it.
func TestAGenerationStoresItsTrace(t *testing.T) {
	collector := tracetest.Start(t)
	collector.Setenv(t)
	tracer, err := trace.Open(t.Context(), trace.Options{Service: "api"})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	a := startTraced(t, pgtest.DSN(t), tracer)
	const caller = "00-0af7651916cd43dd8448eb211c80319%d-b7ad6b7169203331-01"
	in := func(n string) string { return "traceparent: " + strings.Replace(caller, "%d", n, 1) }
	id := ""
	traced := func() string {
		t.Helper()
		d, err := a.server.store.Get(t.Context(), "Cluster", id)
		if err != nil {
			t.Fatal(err)
		}
		parent := TraceparentOf(d)
		if parent == "" {
			return ""
		}
		return strings.Split(parent, "-")[1][31:]
	}

	made := a.do("POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`, in("1")).want(201)
	id = made.at("id")
	is(t, "the trace of generation 1", traced(), "1")
	path := "/clusters/" + id
	a.do("PATCH", path, `{"labels":{}}`, in("2")).want(200)
	a.report(path, "dns", 1, "True", "").want(201)
	is(t, "the trace of generation 1, after an equal PATCH and a report", traced(), "1")
	got := a.do("PATCH", path, `{"labels":{"a":"b"}}`, in("3")).want(200)
	is(t, "the trace of generation 2", traced(), "3")
	a.do("DELETE", path, "", in("4")).want(202)
	is(t, "the trace of generation 3", traced(), "4")
	history := a.do("GET", path+"/history", "").want(200)
	is(t, "what history says of generation 2", history.at("items.1.spec.labels"), `{"a":"b"}`)
	if strings.Contains(string(got.body)+string(made.body)+string(history.body), "traceparent") {
		t.Errorf("answers show it: %s %s", got.body, history.body)
	}

	spans := collector.Await(t, "the span of the POST", func(spans []tracetest.Span) bool {
		return len(spans) > 0
	})
	if s := spans[0]; s.Name != "POST /api/hyperfleet/v1/clusters" || s.Kind != "SERVER" ||
		s.Parent != "b7ad6b7169203331" {
		t.Errorf("%+v", s)
	}
}

func TestNothingIsTracedWhenTracingIsOff(t *testing.T) {
	a := start(t)
	id := a.do("POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`,
		"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").want(201).at("id")
	d, err := a.server.store.Get(t.Context(), "Cluster", id)
	if err != nil {
		t.Fatal(err)
	}
	is(t, "the trace", TraceparentOf(d), "")
	if strings.Contains(string(d.Spec), "traceparent") {
		t.Errorf("%s", d.Spec)
	}
}
