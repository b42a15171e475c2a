package rosa_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
	"atoll.dev/test/testsite"
)

func TestWatchShowsChangesAndContinues(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testsite.HangLimit)
	defer cancel()
	endpoint, ca := platformAPI(t, startMaestro(t))
	p := clientOf(t, endpoint, ca, operator)
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	first, err := p.CreateWork(ctx, "m", manifestWork("first", "1", 1))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.WatchBundles(ctx, remote.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cursor := ""
	next := func(w *remote.Watch, typ rest.EventType, id string) platform.ResourceBundle {
		t.Helper()
		for {
			e, err := w.Next()
			if err != nil {
				t.Fatalf("waiting for %s %s: %v", typ, id, err)
			}
			if e.Cursor != "" {
				cursor = e.Cursor
			}
			if e.Type == rest.Bookmark && typ != rest.Bookmark {
				continue
			}
			var b platform.ResourceBundle
			if e.Type != rest.Bookmark {
				if err := json.Unmarshal(e.Object, &b); err != nil {
					t.Fatal(err)
				}
			}
			if e.Type != typ || b.ID != id {
				t.Fatalf("got %s %s, want %s %s", e.Type, b.ID, typ, id)
			}
			return b
		}
	}
	next(w, rest.Added, first.ID)
	next(w, rest.Bookmark, "")
	second, err := p.CreateWork(ctx, "m", manifestWork("second", "1", 1))
	if err != nil {
		t.Fatal(err)
	}
	next(w, rest.Added, second.ID)
	if _, err := p.ReplaceWork(ctx, work.ID(first.ID), "", manifestWork("first", "2", 1), ""); err != nil {
		t.Fatal(err)
	}
	if b := next(w, rest.Modified, first.ID); b.Version != 2 {
		t.Errorf("version %d", b.Version)
	}
	_ = w.Close()

	if err := p.DeleteWork(ctx, work.ID(second.ID), ""); err != nil {
		t.Fatal(err)
	}
	if cursor == "" {
		t.Fatal("no event had a cursor")
	}
	if w, err = p.WatchBundles(ctx, remote.WatchOptions{Cursor: cursor, ID: second.ID}); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if b := next(w, rest.Modified, second.ID); b.DeletedAt == nil {
		t.Error("the deletion is not shown")
	}
	_, err = p.WatchBundles(ctx, remote.WatchOptions{Cursor: "nonsense"})
	if s := remote.StatusOf(err); s != http.StatusGone && s != http.StatusBadRequest {
		t.Errorf("a cursor that is none: %v", err)
	}
}

func TestSecretsAreNotShownAgainI11(t *testing.T) {
	ctx := t.Context()
	m := startMaestro(t)
	endpoint, ca := platformAPI(t, m)
	p := clientOf(t, endpoint, ca, operator)
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	const value = "aHVudGVyMg=="
	made, err := p.CreateWork(ctx, "m", json.RawMessage(
		`{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"s"},
		"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"},"data":{"k":"`+value+`"}}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Work(ctx, work.ID(made.ID))
	if err != nil {
		t.Fatal(err)
	}
	works, err := p.Works(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := p.Bundle(ctx, work.ID(made.ID))
	if err != nil {
		t.Fatal(err)
	}
	list, err := p.ListBundles(ctx, remote.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := p.WatchBundles(ctx, remote.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	event, err := watch.Next()
	if err != nil {
		t.Fatal(err)
	}
	for name, shown := range map[string]any{"work": w, "works": works, "bundle": bundle, "bundles": list,
		"event": event} {
		text, err := json.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), value) || !strings.Contains(string(text), "***") {
			t.Errorf("%s shows the secret: %s", name, text)
		}
	}
	stored, err := m.Bundle(ctx, work.ID(made.ID))
	if err != nil || !strings.Contains(string(stored.JSON), value) {
		t.Errorf("Maestro has not what was posted: %s, %v", stored.JSON, err)
	}
}

func TestI11SelectedFieldsShowNoSecret(t *testing.T) {
	ctx := t.Context()
	endpoint, ca := platformAPI(t, startMaestro(t))
	p := clientOf(t, endpoint, ca, operator)
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	const value = "aHVudGVyMg=="
	made, err := p.CreateWork(ctx, "m", json.RawMessage(
		`{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"s"},
		"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"},"data":{"k":"`+value+`"}}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	const fields = "manifests.data"
	list, err := p.ListBundles(ctx, remote.ListOptions{Fields: fields})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	watch, err := p.WatchBundles(ctx, remote.WatchOptions{Fields: fields})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	event, err := watch.Next()
	if err != nil {
		t.Fatal(err)
	}
	var watched platform.ResourceBundle
	if err := json.Unmarshal(event.Object, &watched); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]platform.ResourceBundle{"list": list.Items[0], "watch": watched} {
		if b.ID != made.ID || b.Name != "" || len(b.Manifests) != 1 || string(b.Manifests[0]) != `{"data":{"k":"***"}}` {
			t.Errorf("%s shows %+v with manifests %s", name, b, b.Manifests)
		}
	}
	_, err = p.ListBundles(ctx, remote.ListOptions{Fields: "name,,id"})
	want(t, err, 400, "maestro-21", "names nothing")
	_, err = p.WatchBundles(ctx, remote.WatchOptions{Fields: "name,,id"})
	want(t, err, 400, "maestro-21", "names nothing")
}
