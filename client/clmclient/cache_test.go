package clmclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// resourceServer is a CLM with the resources of one collection: each belongs to one account.
type resourceServer struct {
	mu        sync.Mutex
	resources map[string]serverResource // by id
	sent      atomic.Int64              // answers with a resource
	failing   atomic.Bool               // each answer is 501
}

type serverResource struct {
	owner   string
	version int64
	filler  int // length of a text in the spec
}

// startResourceServer starts a server with these resources, and returns it with a client of it.
func startResourceServer(t *testing.T, resources map[string]serverResource) (*resourceServer, *Client) {
	t.Helper()
	s := &resourceServer{resources: resources}
	httpServer := httptest.NewServer(s)
	t.Cleanup(httpServer.Close)
	clm, err := New(Options{Endpoint: httpServer.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clm.Close)
	return s, clm
}

func (s *resourceServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	s.mu.Lock()
	have, ok := s.resources[id]
	s.mu.Unlock()
	switch {
	case s.failing.Load():
		w.WriteHeader(http.StatusNotImplemented)
		return
	case !ok || have.owner != r.Header.Get(TenantHeader):
		w.WriteHeader(http.StatusNotFound)
		return
	}
	body := fmt.Sprintf(`{"id":%q,"kind":"Cluster","name":%q,"version":%d,"spec":{"filler":%q},"statuses":[]}`, id, id,
		have.version, strings.Repeat("x", have.filler))
	tag := rest.BodyETag(have.version, []byte(body))
	if r.Header.Get("If-None-Match") != tag {
		s.sent.Add(1)
	}
	_ = rest.WriteBody(w, r, http.StatusOK, have.version, []byte(body))
}

// A read through a ResourceCache has the result of a read without it, after any changes. The cache stays within its
// limit.
func TestACacheReadsWhatTheClientReads(t *testing.T) {
	const limit = 4000
	server, clm := startResourceServer(t, nil)
	rapid.Check(t, func(t *rapid.T) {
		server.resources = map[string]serverResource{}
		cache := NewResourceCache(clm, limit)
		ids, owners := rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.SampledFrom([]string{"one", "two"})
		version := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				version++
				filler := rapid.SampledFrom([]int{0, 100, 300, 450, 2000}).Draw(t, "filler")
				server.resources[ids.Draw(t, "id")] = serverResource{owners.Draw(t, "owner"), version, filler}
			},
			"remove": func(t *rapid.T) { delete(server.resources, ids.Draw(t, "id")) },
			"fail": func(t *rapid.T) {
				server.failing.Store(true)
				defer server.failing.Store(false)
				_, err := cache.GetWithStatuses(t.Context(), "clusters", ids.Draw(t, "id"))
				if remote.StatusOf(err) != http.StatusNotImplemented {
					t.Fatalf("a read from a server that fails: %v", err)
				}
			},
			"read": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				ctx := WithTenant(t.Context(), cluster.Account(owners.Draw(t, "reader")))
				want, wantErr := clm.GetWithStatuses(ctx, "clusters", id)
				got, err := cache.GetWithStatuses(ctx, "clusters", id)
				if remote.StatusOf(err) != remote.StatusOf(wantErr) {
					t.Fatalf("%v; the client: %v", err, wantErr)
				}
				if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Resource{}, "Derived")); diff != "" {
					t.Fatal(diff)
				}
				before := server.sent.Load()
				again, err := cache.GetWithStatuses(ctx, "clusters", id)
				sent := server.sent.Load() - before
				if kept := err == nil && len(got.JSON) <= limit/8; kept != (err == nil && sent == 0) {
					t.Fatalf("a second read of %d bytes: CLM sent %d resources", len(got.JSON), sent)
				}
				if diff := cmp.Diff(got, again, cmpopts.IgnoreFields(Resource{}, "Derived")); diff != "" {
					t.Fatal(diff)
				}
			},
			"": func(t *rapid.T) {
				size := 0
				for e := cache.order.Front(); e != nil; e = e.Next() {
					size += len(e.Value.(*cacheEntry).resource.JSON)
				}
				if size != cache.size || size > limit || len(cache.entries) != cache.order.Len() {
					t.Fatalf("%d bytes of %d resources are kept, and %d of %d are counted", size, cache.order.Len(),
						cache.size, len(cache.entries))
				}
			},
		})
	})
}

// The resource that was not read for the longest time makes room for another.
func TestACacheKeepsWhatIsRead(t *testing.T) {
	server, clm := startResourceServer(t, map[string]serverResource{})
	cache := NewResourceCache(clm, 9*600) // nine of the ten below
	read := func(id string) (sent int64) {
		t.Helper()
		before := server.sent.Load()
		if _, err := cache.GetWithStatuses(WithTenant(t.Context(), "one"), "clusters", id); err != nil {
			t.Fatal(err)
		}
		return server.sent.Load() - before
	}
	for i := range 10 {
		id := fmt.Sprint(i)
		server.resources[id] = serverResource{"one", 1, 500}
		read(id)
		read("0")
	}
	if sent := read("0"); sent != 0 {
		t.Error("the resource that is always read was not kept")
	}
	if sent := read("1"); sent != 1 {
		t.Error("the resource that was not read for the longest time was kept")
	}
}

// What was derived from a resource is gone when the resource changes. Run with the race detector: readers share
// resources.
func TestACacheSharesAResource(t *testing.T) {
	server, clm := startResourceServer(t, map[string]serverResource{"a": {"one", 1, 10}})
	cache := NewResourceCache(clm, 1<<20)
	ctx := WithTenant(context.Background(), "one")
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 50 {
				r, err := cache.GetWithStatuses(ctx, "clusters", "a")
				if err != nil {
					t.Error(err)
					return
				}
				kept, _ := r.Derived.LoadOrStore("version", r.Version)
				if kept != r.Version {
					t.Errorf("version %d has what was derived from version %d", r.Version, kept)
				}
				server.mu.Lock()
				have := server.resources["a"]
				have.version++
				server.resources["a"] = have
				server.mu.Unlock()
			}
		})
	}
	readers.Wait()
	r, err := cache.GetWithStatuses(ctx, "clusters", "a")
	if err != nil || !json.Valid(r.JSON) || r.Version != server.resources["a"].version {
		t.Errorf("at last: %s, %v", r.JSON, err)
	}
}
