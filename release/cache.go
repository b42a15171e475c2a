package release

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/trace"
)

// Offer is a release that the region offers in a channel.
type Offer struct {
	cluster.Release
	Channel string // "" for a version without a channel
}

// Cache has the releases that a region offers, as its lifecycle manager stores them. A read may return
// releases that were read up to cacheTime earlier: for so long the region still refuses a new release, and still
// accepts a removed one. Several goroutines may call its methods.
type Cache struct {
	clm *clmclient.Client

	mu     sync.Mutex
	readAt time.Time
	known  []Offer
}

// cacheTime is the longest time that Offers returns the releases of an earlier read.
const cacheTime = 2 * time.Second

// NewCache returns a cache that reads from clm, which the caller closes.
func NewCache(clm *clmclient.Client) *Cache { return &Cache{clm: clm} }

// Releases returns the releases that the region offers, the oldest version resource first.
func (c *Cache) Releases(ctx context.Context) (cluster.Releases, error) {
	offers, err := c.Offers(ctx)
	if err != nil {
		return nil, err
	}
	releases := make(cluster.Releases, len(offers))
	for i, o := range offers {
		releases[i] = o.Release
	}
	return releases, nil
}

// Offers returns the releases that the region offers with their channels, the oldest version resource
// first. The caller must not change the result. A call does not wait for the read of another call: when
// the lifecycle manager does not answer, each call ends with its own ctx.
func (c *Cache) Offers(ctx context.Context) ([]Offer, error) {
	c.mu.Lock()
	known, readAt := c.known, c.readAt
	c.mu.Unlock()
	if time.Since(readAt) < cacheTime && len(known) > 0 {
		return known, nil
	}
	// Releases belong to no account, so the read must not have the tenant that ctx may name.
	system, cancel := context.WithCancel(trace.WithParent(context.Background(), trace.Parent(ctx)))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	found, err := c.readOffers(system)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.readAt = found, time.Now()
	return found, nil
}

// readOffers reads the channels and the versions. A lifecycle manager without the kind Channel has no channels.
func (c *Cache) readOffers(ctx context.Context) (found []Offer, err error) {
	oldestFirst := clmclient.ResourceQuery{Order: "created_time asc"}
	names := map[string]string{} // of channels, by id
	for r, err := range c.clm.All(ctx, channels, oldestFirst) {
		if remote.StatusOf(err) == http.StatusNotFound {
			break
		}
		if err != nil {
			return nil, err
		}
		names[r.ID] = r.Name
	}
	for v, err := range c.clm.All(ctx, versions, oldestFirst) {
		if err != nil {
			return nil, err
		}
		if v.DeletedTime != nil {
			continue
		}
		var spec struct{ Version, Image string }
		if err := json.Unmarshal(v.Spec, &spec); err != nil {
			return nil, fmt.Errorf("reading version %s: %w", v.Name, err)
		}
		o := Offer{Release: cluster.Release{Version: spec.Version, Image: spec.Image}}
		if v.OwnerReferences != nil {
			o.Channel = names[v.OwnerReferences.ID]
		}
		found = append(found, o)
	}
	return found, nil
}
