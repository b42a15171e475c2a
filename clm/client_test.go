package clm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
	"atoll.dev/test/testsite"
)

// The region's own client against the server.

func (a *testAPI) client() *clmclient.Client {
	a.t.Helper()
	c, err := clmclient.New(clmclient.Options{Endpoint: a.base})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(c.Close)
	return c
}

// fails checks that a call was refused so.
func fails(t *testing.T, what string, err error, status int, code string) *remote.Error {
	t.Helper()
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != status || e.Code != "HYPERFLEET-"+code || e.Reason == "" {
		t.Fatalf("%s: %v (%+v), want %d %s", what, err, e, status, code)
	}
	return e
}

const clusters = clmclient.Collection("clusters")

func clusterNamed(name string) api.ResourceCreate {
	return api.ResourceCreate{Kind: "Cluster", Name: name, Spec: json.RawMessage(`{"region":"eu","nodes":1}`),
		Labels: api.Labels{"env": "test"}}
}

func TestClientMakesChangesAndDeletes(t *testing.T) {
	c, ctx := start(t).client(), t.Context()
	made, err := c.Create(ctx, clusters, clusterNamed("one"), "key-1")
	if err != nil || made.Kind != "Cluster" || made.ETag == "" || made.Generation != 1 || made.Labels["env"] != "test" {
		t.Fatalf("create: %+v, %v", made, err)
	}
	again, err := c.Create(ctx, clusters, clusterNamed("one"), "key-1")
	if err != nil || again.ID != made.ID {
		t.Fatalf("the same create with its key: %+v, %v", again, err)
	}
	_, err = c.Create(ctx, clusters, clusterNamed("one"), "")
	fails(t, "a name that is taken", err, 409, "CNF-001")
	wrong := clusterNamed("two")
	wrong.Spec = json.RawMessage(`{"region":"mars"}`)
	_, err = c.Create(ctx, clusters, wrong, "")
	if e := fails(t, "a wrong spec", err, 400, "VAL-000"); len(e.Fields) != 1 || e.Fields[0].Field != "spec.region" {
		t.Errorf("fields: %+v", e.Fields)
	}

	merged, err := c.Merge(ctx, clusters, made.ID, json.RawMessage(`{"spec":{"nodes":2}}`), made.ETag)
	if err != nil || string(merged.Spec) != `{"nodes":2,"region":"eu"}` {
		t.Fatalf("merge: %s, %v", merged.JSON, err)
	}
	_, err = c.Merge(ctx, clusters, made.ID, json.RawMessage(`{"spec":{"nodes":3}}`), made.ETag)
	fails(t, "a stale merge", err, 412, "CNF-002")
	replaced, err := c.Replace(ctx, clusters, made.ID, json.RawMessage(`{"spec":{"nodes":4}}`), merged.ETag)
	if err != nil || string(replaced.Spec) != `{"nodes":4}` || replaced.Generation != 3 {
		t.Fatalf("replace: %s, %v", replaced.JSON, err)
	}

	for _, get := range []func() (clmclient.Resource, error){
		func() (clmclient.Resource, error) { return c.Get(ctx, clusters, made.ID, "") },
		func() (clmclient.Resource, error) { return c.Get(ctx, clmclient.AllKinds, made.ID, "") },
		func() (clmclient.Resource, error) { return c.Named(ctx, clusters, "one") },
	} {
		if got, err := get(); err != nil || got.ETag != replaced.ETag || string(got.JSON) != string(replaced.JSON) {
			t.Errorf("get: %s %s, %v", got.JSON, got.ETag, err)
		}
	}
	if got, err := c.Get(ctx, clusters, made.ID, "name"); err != nil || got.Name != "one" || got.Spec != nil {
		t.Errorf("one field: %s, %v", got.JSON, err)
	}
	if _, err := c.Named(ctx, clusters, "it's none"); remote.StatusOf(err) != 404 {
		t.Errorf("no such name: %v", err)
	}

	fails(t, "force-delete of what is wanted", c.ForceDelete(ctx, clusters, made.ID, "why not"), 409, "CNF-003")
	_, err = c.Delete(ctx, clusters, made.ID, merged.ETag)
	fails(t, "a stale deletion", err, 412, "CNF-002")
	doomed, err := c.Delete(ctx, clusters, made.ID, replaced.ETag)
	if err != nil || doomed.DeletedTime == nil || doomed.Generation != 4 {
		t.Fatalf("delete: %+v, %v", doomed, err)
	}
	if err := c.ForceDelete(ctx, clusters, made.ID, "nobody answers"); err != nil {
		t.Fatal(err)
	}
	_, err = c.Get(ctx, clusters, made.ID, "")
	fails(t, "what is gone", err, 404, "NTF-001")

	history, err := c.History(ctx, clusters, made.ID, 0, 3)
	if err != nil || len(history) != 3 || history[0].Action != "remove" {
		t.Fatalf("history: %+v, %v", history, err)
	}
	older, err := c.History(ctx, clusters, made.ID, history[2].Seq, 100)
	if err != nil || len(older) != 3 || older[2].Action != "create" {
		t.Fatalf("older history: %+v, %v", older, err)
	}
}

func TestClientListsAllResourcesByPages(t *testing.T) {
	c, ctx := start(t).client(), t.Context()
	var made []string
	for i := range 7 {
		r, err := c.Create(ctx, clusters, clusterNamed(fmt.Sprintf("c-%d", i)), "")
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, r.Name)
		if _, err := c.Create(ctx, clusters.Below(r.ID, "nodepools"), api.ResourceCreate{Kind: "NodePool", Name: "p",
			Spec: json.RawMessage(`{}`)}, ""); err != nil {
			t.Fatal(err)
		}
	}
	page, err := c.List(ctx, clusters, clmclient.ResourceQuery{Size: 3, Order: "name asc", Search: "labels.env='test'",
		Fields: "name"})
	if err != nil || page.Total != 7 || len(page.Items) != 3 || page.Items[2].Name != "c-2" || page.Continue == "" ||
		page.Cursor == "" {
		t.Fatalf("first page: %+v, %v", page, err)
	}
	if page, err = c.List(ctx, clusters, clmclient.ResourceQuery{Page: 3, Size: 3, Order: "name asc"}); err != nil ||
		len(page.Items) != 1 {
		t.Fatalf("last page: %+v, %v", page, err)
	}
	var all []string
	for r, err := range c.All(ctx, clmclient.AllKinds, clmclient.ResourceQuery{Kind: "Cluster", Order: "name"}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r.Name)
	}
	if diff := cmp.Diff(made, all); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	for _, err := range c.All(ctx, clusters, clmclient.ResourceQuery{Search: "nonsense"}) {
		fails(t, "a bad search", err, 400, "VAL-005")
	}
	kinds, err := c.Kinds(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []clmclient.ResourceKind{
		{Kind: "Build", Plural: "builds", Owner: "channels"}, {Kind: "Channel", Plural: "channels"},
		{Kind: "Cluster", Plural: "clusters"},
		{Kind: "NodePool", Plural: "nodepools", Owner: "clusters"}, {Kind: "Note", Plural: "notes", Owner: "clusters"},
		{Kind: "Pass", Plural: "passes", Owner: "clusters"}, {Kind: "Stamp", Plural: "stamps", Owner: "visits"},
		{Kind: "Version", Plural: "versions", Owner: "channels"}, {Kind: "Visit", Plural: "visits"},
		{Kind: "WifConfig", Plural: "wifconfigs"},
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

func TestClientSendsAndReadsReports(t *testing.T) {
	c, ctx := start(t).client(), t.Context()
	made, err := c.Create(ctx, clusters, clusterNamed("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	report := api.AdapterStatusCreate{Adapter: "dns", ObservedGeneration: 1, ObservedTime: time.Now(),
		Conditions: []api.ReportedCondition{
			{Type: "Available", Status: "True"}, {Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"}}}
	if taken, err := c.Report(ctx, clusters, made.ID, report); err != nil || !taken {
		t.Fatalf("a report: %v, %v", taken, err)
	}
	report.ObservedGeneration = 2
	if taken, err := c.Report(ctx, clusters, made.ID, report); err != nil || taken {
		t.Fatalf("a report of a generation that is not: %v, %v", taken, err)
	}
	if got, err := c.Statuses(ctx, clusters, made.ID); err != nil || len(got) != 1 || got[0].Adapter != "dns" {
		t.Errorf("statuses: %+v, %v", got, err)
	}
}

// A follower with a cursor of another database starts over and reports it.
func TestClientFollowsAndRelistsWhenItsCursorIsExpired(t *testing.T) {
	c, ctx := start(t).client(), t.Context()
	elsewhere, err := start(t).client().List(ctx, clusters, clmclient.ResourceQuery{})
	if err != nil {
		t.Fatal(err)
	}
	one, err := c.Create(ctx, clusters, clusterNamed("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(ctx, testsite.HangLimit)
	defer stop()
	done := errors.New("done")
	var seen []string
	cursor := ""
	err = c.Follow(ctx, clmclient.AllKinds, remote.WatchOptions{Kind: "Cluster", Cursor: elsewhere.Cursor},
		func(e remote.Event) error {
			note := string(e.Type)
			if e.Object != nil {
				r, err := clmclient.ResourceOf(e.Object)
				if err != nil {
					return err
				}
				note += " " + r.Name
			}
			if e.Cursor != "" {
				cursor = e.Cursor
			}
			if !slices.Contains(seen, note) {
				seen = append(seen, note)
			}
			switch {
			case note == "BOOKMARK" && len(seen) == 3:
				_, err := c.Delete(ctx, clusters, one.ID, "")
				return err
			case note == "MODIFIED one":
				return c.ForceDelete(ctx, clusters, one.ID, "test")
			case note == "DELETED one":
				return done
			}
			return nil
		})
	if want := []string{"RELIST", "ADDED one", "BOOKMARK", "MODIFIED one", "DELETED one"}; !errors.Is(err, done) ||
		!slices.Equal(seen, want) {
		t.Errorf("seen %q, %v; want %q", seen, err, want)
	}
	// From where it ended, there is nothing more of what was.
	if _, err := c.Create(ctx, clusters, clusterNamed("two"), ""); err != nil {
		t.Fatal(err)
	}
	err = c.Follow(ctx, clusters, remote.WatchOptions{Cursor: cursor}, func(e remote.Event) error {
		if e.Type == rest.Bookmark {
			return nil
		}
		r, err := clmclient.ResourceOf(e.Object)
		if err == nil && r.Name == "one" {
			return nil // the last event's cursor may lie a moment before it
		}
		if err != nil || e.Type != rest.Added || r.Name != "two" {
			t.Errorf("%s %s, %v", e.Type, e.Object, err)
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Error(err)
	}
}

// A create with a key is sent again when its answer was lost; one without is
// not.
func TestClientRetriesACreateOnlyWithAKey(t *testing.T) {
	a := start(t)
	back, err := url.Parse(a.base)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"key-1", ""} {
		calls := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Authorization"); got != "Bearer token-1" {
				t.Errorf("Authorization: %q", got)
			}
			calls++
			r.URL.Scheme, r.URL.Host, r.RequestURI = back.Scheme, back.Host, ""
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if calls == 1 {
				panic(http.ErrAbortHandler) // after it took effect
			}
			w.WriteHeader(resp.StatusCode)
			_, _ = w.Write([]byte(`{"name":"proxied"}`))
		}))
		c, err := clmclient.New(clmclient.Options{Endpoint: s.URL, Token: "token-1"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Create(t.Context(), clusters, clusterNamed("one-"+key+"1"), key)
		if sent := calls > 1; sent != (key != "") || (err == nil) != sent {
			t.Errorf("with key %q: %d calls, %v", key, calls, err)
		}
		c.Close()
		s.Close()
	}
	if page, err := a.client().List(t.Context(), clusters, clmclient.ResourceQuery{}); err != nil || page.Total != 2 {
		t.Errorf("%d clusters, %v; want one for each create", page.Total, err)
	}
}
