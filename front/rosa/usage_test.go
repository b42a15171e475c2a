package rosa

import (
	"encoding/json"
	"testing"
	"time"

	"atoll.dev/api/fleet"
)

func TestUsageIsAddedToWhatMaestroSays(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	usage := map[string]fleet.Usage{"a": {
		Name: "a", State: fleet.Cordoned, Capacity: map[string]int64{"planes": 40}, Reserved: map[string]int64{
			"planes": 2, "memory_mib": 700}, Placements: 2,
		Versions: []string{"1.36.3"}, LastSeenTime: &at,
	}}
	for document, want := range map[string]string{
		`{"name":"a","x":{"y":[1.50]}}`: `{"capacity":{"planes":40},"last_seen_at":"2026-11-21T10:00:00Z","name":"a","placements":2,"reserved":{"memory_mib":700,"planes":2},"state":"Cordoned","versions":["1.36.3"],"x":{"y":[1.50]}}`,
		`{"name":"b"}`:                  `{"name":"b"}`,
		`{"items":[{"name":"a","last_seen_at":"x"},{"name":"b"}],"total":2}`: `{"items":[{"capacity":{"planes":40},"last_seen_at":"x","name":"a","placements":2,"reserved":{"memory_mib":700,"planes":2},"state":"Cordoned","versions":["1.36.3"]},{"name":"b"}],"total":2}`,
		`{"items":[]}`: `{"items":[]}`,
	} {
		if got, err := withUsage(json.RawMessage(document), usage); err != nil || string(got) != want {
			t.Errorf("%s becomes\n%s (%v), want\n%s", document, got, err, want)
		}
		if got, err := withUsage(json.RawMessage(document), nil); err != nil || string(got) != document {
			t.Errorf("%s without usage becomes %s (%v)", document, got, err)
		}
	}
}
