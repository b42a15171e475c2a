package clm

import (
	"encoding/json"
	"testing"
	"time"

	"atoll.dev/store"
)

func TestSpecsAreTheSameByContent(t *testing.T) {
	at := time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	resource := func(spec string, updated time.Time) store.Document {
		d := store.Document{Kind: "Cluster", ID: "1"}
		seen := observed{}
		if err := encode(&d, declared{Spec: json.RawMessage(spec), UpdatedTime: updated}, seen); err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := resource(`{"a":1,"b":2}`, at)
	undecoded := resource(`{"a":1,"b":2}`, at)
	undecoded.Decoded = nil
	for name, c := range map[string]struct {
		after store.Document
		want  bool
	}{
		"the same bytes":       {before, true},
		"another order":        {resource(`{"b":2,"a":1.0}`, at), true},
		"another member":       {resource(`{"a":1,"b":3}`, at), false},
		"another time":         {resource(`{"a":1,"b":2}`, at.Add(time.Microsecond)), false},
		"equal, but undecoded": {undecoded, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := sameStoredSpec(before, c.after)
			if err != nil || got != c.want {
				t.Errorf("sameStoredSpec = %v, %v; want %v", got, err, c.want)
			}
			if equal, err := store.SameJSON(before.Spec, c.after.Spec); err != nil || equal != c.want {
				t.Errorf("SameJSON = %v, %v; want %v", equal, err, c.want)
			}
		})
	}
}
