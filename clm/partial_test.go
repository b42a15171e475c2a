package clm

import (
	"fmt"
	"testing"
	"time"
)

// A report that reads only the status of its resource leaves the wire form that the whole resource has.
func TestI2ReportsLeaveTheWireFormOfTheResource(t *testing.T) {
	a := start(t)
	id := a.cluster("first")
	path := "/clusters/" + id
	at := time.Now().UTC().Add(-time.Minute)
	check := func(what string) {
		t.Helper()
		d, err := a.server.store.Get(t.Context(), "Cluster", id)
		if err != nil {
			t.Fatal(err)
		}
		partial, err := a.server.store.GetStatus(t.Context(), "Cluster", id)
		if err != nil || !partial.IsPartial() {
			t.Fatalf("after %s: the resource is read whole: %v", what, err)
		}
		spec, err1 := declaredOf(d)
		known, err2 := declaredOf(partial)
		if err1 != nil || err2 != nil || !known.UpdatedTime.Equal(spec.UpdatedTime) || known.UpdatedBy != spec.UpdatedBy ||
			fmt.Sprint(known.Tenancy) != fmt.Sprint(spec.Tenancy) {
			t.Errorf("after %s: %+v, %v is read of %+v, %v", what, known, err2, spec, err1)
		}
		want, err := a.server.registry.byKind["Cluster"].render(d)
		if err != nil || string(want) != string(d.Wire) {
			t.Errorf("after %s: the wire form is\n%s, want\n%s, %v", what, d.Wire, want, err)
		}
	}
	check("the creation")
	for i := range 3 {
		for _, adapter := range []string{"dns", "validation"} {
			for _, available := range []string{"False", "True", "True"} {
				at = at.Add(time.Second)
				a.server.recent.setCredit(-1 << 30) // each report reads
				body := fmt.Sprintf(`{"adapter":%q,"observed_generation":%d,"observed_time":%q,"data":{"a":"},\"tenancy\":"},
					"conditions":[{"type":"Available","status":%q,"message":"},\"tenancy\":{"},
					{"type":"Applied","status":"True"},{"type":"Health","status":"True"}]}`, adapter, i+1,
					at.Format(time.RFC3339Nano), available)
				a.do("PUT", path+"/statuses", body).want(201)
				check("a report")
				a.do("PUT", path+"/statuses", body).want(201)
				check("a repeated report")
			}
		}
		a.do("PATCH", path, fmt.Sprintf(`{"spec":{"nodes":%d},"labels":{"a":"b"}}`, i+7)).want(200)
		check("a change")
	}
}

func TestTheEndOfAWireFormIsReadStrictly(t *testing.T) {
	for tail, ok := range map[string]bool{
		`,"status":{},"tenancy":{"a":"b"},"updated_by":"x","updated_time":"2026-01-02T03:04:05Z"}`:         true,
		`,"status":{},"tenancy":null,"updated_by":"},\"tenancy\":","updated_time":"2026-01-02T03:04:05Z"}`: true,
		`,"status":{},"tenancy":{"a":"b"},"updated_by":"x"}`:                                               false,
		`,"status":{},"tenancy":{},"updated_by":"x","updated_time":"2026-01-02T03:04:05Z","more":1}`:       false,
		`,"status":{},"tenancy":{},"updated_by":"x","updated_time":"2026-01-02T03:04:05Z"`:                 false,
		`,"status":{},"updated_by":"x","updated_time":"2026-01-02T03:04:05Z"}`:                             false,
		``: false,
	} {
		if spec, err := scanTail([]byte(tail)); (err == nil) != ok {
			t.Errorf("%s: %+v, %v", tail, spec, err)
		}
	}
}
