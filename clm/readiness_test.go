package clm

import (
	"encoding/json"
	"testing"

	"atoll.dev/internal/rest"
)

func TestReadinessNamesMissingParts(t *testing.T) {
	for want, missing := range map[string][]rest.Missing{
		`{"status":"ok"}`: nil,
		`{"status":"not_ready","reason":"database: away","missing":[{"name":"database","reason":"away"}]}`: {
			{Name: "database", Reason: "away"}},
		`{"status":"shutting_down","reason":"draining: stops","missing":[{"name":"draining","reason":"stops"}]}`: {
			{Name: rest.Draining, Reason: "stops"}},
	} {
		body, err := json.Marshal(Readiness(missing))
		if err != nil {
			t.Fatal(err)
		}
		is(t, "the body", string(body), want)
	}
}
