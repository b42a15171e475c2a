package maestro

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// watcher reads a watch line by line.
type watcher struct {
	t      *testing.T
	events chan rest.Event
	stop   func()
}

func (i *instance) watch(t *testing.T, query string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", i.url+"/api/maestro/v1/resource-bundles?watch=true"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := i.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: status %d", resp.StatusCode)
	}
	w := &watcher{t: t, events: make(chan rest.Event, 10000), stop: cancel}
	go func() {
		defer close(w.events)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			var e rest.Event
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				return
			}
			w.events <- e
		}
	}()
	return w
}

// next returns the next event that is not a bookmark, with its bundle.
func (w *watcher) next() (rest.Event, api.ResourceBundle) {
	w.t.Helper()
	for {
		e := w.any()
		if e.Type == rest.Bookmark {
			continue
		}
		var b api.ResourceBundle
		if err := json.Unmarshal(e.Object, &b); err != nil {
			w.t.Fatalf("%v: %s", err, e.Object)
		}
		return e, b
	}
}

func (w *watcher) any() rest.Event {
	w.t.Helper()
	select {
	case e, ok := <-w.events:
		if !ok {
			w.t.Fatal("the watch ended")
		}
		return e
	case <-time.After(patience):
		w.t.Fatal("no event")
	}
	return rest.Event{}
}

func TestAWatchBeginsWithWhatIsThereAndGoesOn(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	m.consumer("mc2")
	src := m.source()
	src.create("mc1", "w1", 1)
	src.create("mc2", "x1", 1)

	w := m.watch(t, "&consumer=mc1")
	if e, b := w.next(); e.Type != rest.Added || b.ID != "w1" {
		t.Errorf("%s %s", e.Type, b.ID)
	}
	if e := w.any(); e.Type != rest.Bookmark || e.Cursor == "" {
		t.Errorf("%+v", e)
	}
	src.create("mc2", "x2", 1) // another consumer's
	src.create("mc1", "w2", 1)
	if e, b := w.next(); e.Type != rest.Added || b.ID != "w2" {
		t.Errorf("%s %s", e.Type, b.ID)
	}
	src.update("mc1", "w2", 2)
	if e, b := w.next(); e.Type != rest.Modified || b.ID != "w2" || b.Version != 2 {
		t.Errorf("%s %s %d", e.Type, b.ID, b.Version)
	}
	agent := site.agent("mc1")
	for observed := map[string]int64{}; len(observed) < 2; {
		e, b := w.next()
		if e.Type != rest.Modified || b.Status.ObservedVersion != b.Version {
			t.Errorf("%s %s", e.Type, e.Object)
		}
		observed[b.ID] = b.Status.ObservedVersion
	}
	agent.report("w1", "Available")
	if _, b := w.next(); b.ID != "w1" {
		t.Errorf("status of %s", b.ID)
	}
	src.remove("mc1", "w1")
	if e, b := w.next(); e.Type != rest.Modified || b.DeletedAt == nil {
		t.Errorf("%s %s", e.Type, e.Object)
	}
	e, b := w.next()
	if e.Type != rest.Deleted || b.ID != "w1" {
		t.Errorf("%s %s", e.Type, e.Object)
	}
	w.stop()

	// Only one bundle, only some members.
	one := m.watch(t, "&id=w2&fields=name")
	if e, _ := one.next(); string(e.Object) != `{"id":"w2","name":"w2"}` {
		t.Errorf("%s", e.Object)
	}
}

// TestI4AWatchContinuesFromItsCursor: what happened meanwhile comes, deletions
// included, and a version comes once.
func TestI4AWatchContinuesFromItsCursor(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	site.agent("mc1")
	src := m.source()
	src.create("mc1", "gone", 1)
	src.create("mc1", "stays", 1)
	m.awaitAllObserved(2)
	w := m.watch(t, "")
	cursor := ""
	for cursor == "" {
		cursor = w.any().Cursor
	}
	w.stop()
	src.remove("mc1", "gone")
	src.create("mc1", "new", 1)
	m.awaitAllObserved(2)

	again := m.watch(t, "&cursor="+cursor)
	got := map[string]rest.EventType{}
	versions := map[string][]int64{}
	for len(got) < 2 || got["gone"] != rest.Deleted {
		e, b := again.next()
		got[b.ID] = e.Type
		versions[b.ID] = append(versions[b.ID], b.Version)
	}
	if got["stays"] != "" {
		t.Errorf("what did not change came: %v", got)
	}
	// It goes on with what is new, from the shared feed, without repeating.
	src.update("mc1", "new", 2)
	for {
		_, b := again.next()
		versions[b.ID] = append(versions[b.ID], b.Version)
		if b.ID == "new" && b.Version == 2 && b.Status.ObservedVersion == 2 {
			break
		}
	}
	if !slices.IsSorted(versions["new"]) {
		t.Errorf("a bundle went back: %v", versions)
	}
	again.stop()

	// A quiet watch stays open, and receives the next change.
	quiet := m.watch(t, "&cursor="+lastCursor(t, m))
	src.update("mc1", "stays", 2)
	if _, b := quiet.next(); b.ID != "stays" {
		t.Errorf("%s", b.ID)
	}
}

func lastCursor(t *testing.T, m *instance) string {
	t.Helper()
	cursor, err := m.server.store.CurrentCursor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(cursor)
}

// TestI4ACursorThatIsGoneIs410 compacts what the cursor would need.
func TestI4ACursorThatIsGoneIs410(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	site.agent("mc1")
	src := m.source()
	cursor := lastCursor(t, m)
	src.create("mc1", "w1", 1)
	m.awaitAllObserved(1)
	src.remove("mc1", "w1")
	m.awaitAllObserved(0)
	if _, err := m.server.store.Compact(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	// This server has the changes in memory yet; one that starts now has not.
	fresh := site.start()
	fresh.refuse(http.StatusGone, "maestro-410", "GET", "/api/maestro/v1/resource-bundles?watch=true&cursor="+cursor,
		"")
	m.refuse(http.StatusBadRequest, "maestro-8", "GET", "/api/maestro/v1/resource-bundles?watch=true&cursor=nonsense",
		"")
}

// TestASlowWatchIsToldToComeAgain fills the queue of a watch that takes
// nothing.
func TestASlowWatchIsToldToComeAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	w := m.watch(t, "")
	if e := w.any(); e.Type != rest.Bookmark {
		t.Fatalf("%+v", e)
	}
	// One batch that is larger than any queue: the watch cannot have taken
	// part of it.
	docs := documents(20_000)
	for i := range docs {
		docs[i].Wire = []byte(`{}`)
	}
	m.server.feed.Publish(store.Batch{Documents: docs, Cursor: "x"})
	e := w.any()
	var body api.Error
	if err := json.Unmarshal(e.Object, &body); err != nil || e.Type != rest.Failed || body.Code != apierror.CodeUnavailable {
		t.Errorf("%+v %v", e, err)
	}
}

// TestAWatchOfARestoredDatabaseBeginsAnew: a feed that cannot be continued
// ends all who follow it.
func TestAWatchOfARestoredDatabaseBeginsAnew(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	w := m.watch(t, "")
	if e := w.any(); e.Type != rest.Bookmark {
		t.Fatalf("%+v", e)
	}
	m.server.feed.Fail(store.ErrGone)
	e := w.any()
	var body api.Error
	if err := json.Unmarshal(e.Object, &body); err != nil || e.Type != rest.Failed || body.Code != apierror.CodeGone {
		t.Errorf("%+v %v", e, err)
	}
}

func documents(n int) []store.Document {
	docs := make([]store.Document, n)
	for i := range docs {
		docs[i] = store.Document{Kind: bundle.Kind, ID: fmt.Sprintf("d%d", i), Version: 1}
	}
	return docs
}
