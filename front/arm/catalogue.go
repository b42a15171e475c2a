package arm

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
)

// catalogue caches the releases that the region offers.
type catalogue struct {
	clm *clmclient.Client

	mu    sync.Mutex
	at    time.Time
	known []offer
}

// offer is a release that the region offers in a channel.
type offer struct {
	cluster.Release
	channel string
}

// freshness is how long the cache is used: so long a new release is refused, and a removed one accepted.
const freshness = 2 * time.Second

// releases returns the releases that the region offers.
func (c *catalogue) releases(ctx context.Context) (cluster.Releases, error) {
	offers, err := c.offers(ctx)
	if err != nil {
		return nil, err
	}
	releases := make(cluster.Releases, len(offers))
	for i, o := range offers {
		releases[i] = o.Release
	}
	return releases, nil
}

// offers returns the releases that the region offers, with their channels. They belong to no account.
func (c *catalogue) offers(ctx context.Context) ([]offer, error) {
	c.mu.Lock()
	known, at := c.known, c.at
	c.mu.Unlock()
	if time.Since(at) < freshness && len(known) > 0 {
		return known, nil
	}
	// The caller's context names a tenant, to whom the lifecycle manager shows no release.
	system, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	channels := map[string]string{} // names by id
	for r, err := range c.clm.All(system, "channels", clmclient.ResourceQuery{Order: "created_time asc"}) {
		if err != nil {
			return nil, err
		}
		channels[r.ID] = r.Name
	}
	var found []offer
	for v, err := range c.clm.All(system, "versions", clmclient.ResourceQuery{Order: "created_time asc"}) {
		if err != nil {
			return nil, err
		}
		var r struct{ Version, Image string }
		if err := json.Unmarshal(v.Spec, &r); err != nil {
			return nil, fmt.Errorf("reading version %s: %w", v.Name, err)
		}
		if v.DeletedTime != nil {
			continue
		}
		o := offer{Release: cluster.Release{Version: r.Version, Image: r.Image}}
		if v.OwnerReferences != nil {
			o.channel = channels[v.OwnerReferences.ID]
		}
		found = append(found, o)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.at = found, time.Now()
	return found, nil
}
