package clm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pgtest"
)

// Two servers on one database act as one: no update is lost (I2), an idempotency key makes one
// resource at either of them, and watches of either get each change of each resource in order (I1,
// I4).
func TestI2ReplicasShareADatabase(t *testing.T) {
	const writers, rounds, keys = 4, 15, 10
	dsn := pgtest.DSN(t)
	one, two := startOn(t, dsn), startOn(t, dsn)
	servers := []*clmclient.Client{one.client(), two.client()}
	either := func() *clmclient.Client { return servers[rand.IntN(2)] }
	watches := []*watched{one.watch(t, "/clusters?watch=true"), two.watch(t, "/clusters?watch=true")}
	for _, w := range watches {
		w.want("BOOKMARK")
	}
	counter, err := either().Create(t.Context(), clusters, api.ResourceCreate{Kind: "Cluster", Name: "counter",
		Spec: json.RawMessage(`{"nodes":0}`)}, "")
	if err != nil {
		t.Fatal(err)
	}

	var all sync.WaitGroup
	increment := func() error {
		for {
			have, err := either().Get(t.Context(), clusters, counter.ID, "")
			if err != nil {
				return err
			}
			var spec struct{ Nodes int }
			if err := json.Unmarshal(have.Spec, &spec); err != nil {
				return err
			}
			_, err = either().Merge(t.Context(), clusters, counter.ID,
				json.RawMessage(fmt.Sprintf(`{"spec":{"nodes":%d}}`, spec.Nodes+1)), have.ETag)
			if e, ok := errors.AsType[*remote.Error](err); !ok || e.Status != 412 {
				return err
			}
		}
	}
	ids := make([][writers]string, keys)
	for n := range writers {
		all.Go(func() {
			for range rounds {
				if err := increment(); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			for k := range keys {
				made, err := servers[(n+k)%2].Create(t.Context(), clusters, clusterNamed(fmt.Sprint("keyed-", k)),
					fmt.Sprint("key-", k))
				if err != nil {
					t.Error(err)
					return
				}
				ids[k][n] = made.ID
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for k, of := range ids {
		for _, id := range of {
			if id != of[0] {
				t.Errorf("key %d made %v", k, of)
			}
		}
	}
	for i, s := range servers {
		have, err := s.Get(t.Context(), clusters, counter.ID, "")
		if want := fmt.Sprintf(`{"nodes":%d}`, writers*rounds); err != nil || string(have.Spec) != want ||
			have.Generation != writers*rounds+1 {
			t.Errorf("at server %d: %s at generation %d, want %s; %v", i, have.Spec, have.Generation, want, err)
		}
	}
	for i, w := range watches {
		last := map[string]int{}
		for last[counter.ID] < writers*rounds+1 || len(last) < keys+1 {
			e := w.next()
			if e.Type == "BOOKMARK" {
				continue
			}
			if e.Object.Generation <= last[e.Object.ID] {
				t.Fatalf("watch %d: %s of %s at generation %s after %s", i, e.Type, e.Object.Name,
					strconv.Itoa(e.Object.Generation), strconv.Itoa(last[e.Object.ID]))
			}
			last[e.Object.ID] = e.Object.Generation
		}
	}
}
