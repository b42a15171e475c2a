package works

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/adapter"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// Objects may have changed before the watch began: the watch reports each of them, also if its
// first listing was interrupted and started again.
func TestARestartedListingReportsEveryChange(t *testing.T) {
	synctest.Test(t, listAnew)
}

func listAnew(t *testing.T) {
	var immediate []string
	s := New(Options{}).watching
	s.changed = func(e adapter.Event) bool { immediate = append(immediate, e.ID); return true }
	s.relist()
	take := func(e remote.Event) {
		t.Helper()
		if err := s.take(e); err != nil {
			t.Fatal(err)
		}
	}
	list := func(ids ...string) {
		for _, id := range ids {
			object := fmt.Sprintf(`{"id":%q,"version":1,"metadata":{"annotations":{%q:"{\"id\":\"%s\"}"}}}`,
				"bundle-"+id, annotationEvent, id)
			take(remote.Event{Type: rest.Added, Object: json.RawMessage(object)})
		}
	}
	relist, end := remote.Event{Type: remote.Relist}, remote.Event{Type: rest.Bookmark, Cursor: "1"}

	list("a", "b")
	take(relist)
	list("a", "c")
	if len(immediate) > 0 {
		t.Errorf("reported %v before the listing ended", immediate)
	}
	take(end)
	takeQueued := func() (ids []string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // of the bubble
		defer cancel()
		s.paced.Run(ctx, func(e adapter.Event) bool { ids = append(ids, e.ID); return true })
		slices.Sort(ids)
		return ids
	}
	queued := takeQueued()
	if !slices.Equal(queued, []string{"a", "c"}) || !slices.Equal(immediate, []string{"b"}) {
		t.Errorf("queued %v, want a and c; reported at once %v, want the deleted b", queued, immediate)
	}

	take(relist)
	list("a", "d")
	take(end)
	if slices.Sort(immediate); !slices.Equal(immediate, []string{"b", "c", "d"}) || len(takeQueued()) > 0 {
		t.Errorf("reported at once %v, want the deleted b and c, and the new d", immediate)
	}
}
