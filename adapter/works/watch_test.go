package works

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"testing"

	"atoll.dev/adapter"
	"atoll.dev/client"
	"atoll.dev/internal/rest"
)

// What was there when the watch began may have changed while nobody looked: of
// that it tells, also when the first listing was cut short and began anew.
func TestAListingThatBeginsAnewForgetsNothing(t *testing.T) {
	var told []string
	s := &watching{
		works: New(Options{}), changed: func(e adapter.Event) { told = append(told, e.ID) }, seed: maphash.MakeSeed(),
		known: map[string]seen{}, listing: 1, calm: make(chan []adapter.Event, 1),
	}
	take := func(e client.Event) {
		t.Helper()
		if err := s.take(e); err != nil {
			t.Fatal(err)
		}
	}
	list := func(ids ...string) {
		for _, id := range ids {
			object := fmt.Sprintf(`{"id":%q,"version":1,"metadata":{"annotations":{%q:"{\"id\":\"%s\"}"}}}`, "bundle-"+id, annotationEvent, id)
			take(client.Event{Type: rest.Added, Object: json.RawMessage(object)})
		}
	}
	relist, end := client.Event{Type: client.Relist}, client.Event{Type: rest.Bookmark, Cursor: "1"}

	list("a", "b")
	take(relist)
	list("a", "c")
	if len(told) > 0 {
		t.Errorf("told of %v at once", told)
	}
	take(end)
	var calm []string
	select {
	case events := <-s.calm:
		for _, e := range events {
			calm = append(calm, e.ID)
		}
	default:
	}
	slices.Sort(calm)
	if !slices.Equal(calm, []string{"a", "c"}) || !slices.Equal(told, []string{"b"}) {
		t.Errorf("calmly %v, want a and c; at once %v, want b, which is gone", calm, told)
	}

	take(relist)
	list("a", "d")
	take(end)
	if slices.Sort(told); !slices.Equal(told, []string{"b", "c", "d"}) || len(s.calm) > 0 {
		t.Errorf("told of %v, want b, c (gone) and d (new)", told)
	}
}
