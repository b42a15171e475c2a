package release_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
	"atoll.dev/release"
)

// A request that reads the releases does not wait for the hanging read of another
// request.
func TestARequestDoesNotWaitForTheReadOfAnother(t *testing.T) {
	requests := make(chan struct{}, 2)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requests <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	lifecycle, err := clmclient.New(clmclient.Options{Endpoint: silent.URL, Timeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer lifecycle.Close()
	cache := release.NewCache(lifecycle)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := cache.Releases(ctx)
			done <- err
		}()
	}
	for range 2 {
		select {
		case <-requests:
		case <-time.After(3 * time.Minute):
			t.Error("the second read waits for the first")
		}
	}
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// The cache reads as the system, also for a caller with a tenant, and needs no channels.
func TestOffersOfALifecycleManager(t *testing.T) {
	const channelList = `{"kind":"ChannelList","items":[{"id":"c1","kind":"Channel","name":"stable"}]}`
	const versionList = `{"kind":"VersionList","items":[
		{"id":"v1","kind":"Version","name":"1-36-3","owner_references":{"id":"c1","kind":"Channel"},
			"spec":{"version":"1.36.3","image":"atoll.dev/release:1.36.3"}},
		{"id":"v2","kind":"Version","name":"1-35-9","deleted_time":"2026-01-01T00:00:00Z","spec":{}}]}`
	image := cluster.Release{Version: "1.36.3", Image: "atoll.dev/release:1.36.3"}
	for name, c := range map[string]struct {
		channels string // "": the lifecycle manager has no such kind
		want     []release.Offer
	}{
		"with channels":    {channelList, []release.Offer{{Release: image, Channel: "stable"}}},
		"without channels": {"", []release.Offer{{Release: image}}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tenant := r.Header.Get(clmclient.TenantHeader); tenant != "" {
					t.Errorf("%s has the tenant %q", r.URL, tenant)
				}
				body := versionList
				if strings.HasSuffix(r.URL.Path, "/channels") {
					body = c.channels
				}
				w.Header().Set("Content-Type", "application/json")
				if body == "" {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = io.WriteString(w, body)
			}))
			defer server.Close()
			lifecycle, err := clmclient.New(clmclient.Options{Endpoint: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer lifecycle.Close()
			offers, err := release.NewCache(lifecycle).Offers(clmclient.WithTenant(t.Context(), "a"))
			if err != nil || !slices.Equal(offers, c.want) {
				t.Errorf("%v, %v; want %v", offers, err, c.want)
			}
		})
	}
}
