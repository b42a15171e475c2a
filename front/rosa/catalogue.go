package rosa

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"atoll.dev/client/clmclient"
	"atoll.dev/cluster"
)

// catalogue caches the releases that the region offers: the Versions of the
// lifecycle manager.
type catalogue struct {
	clm *clmclient.Client

	mu    sync.Mutex
	at    time.Time
	known cluster.Releases
}

const versions clmclient.Collection = "versions"

// freshness is how long the cache is used. For so long a new release is still
// refused, and a removed release still accepted.
const freshness = 2 * time.Second

// releases returns the releases that the region offers. They belong to no account.
func (c *catalogue) releases(ctx context.Context) (cluster.Releases, error) {
	if known := c.fresh(); len(known) > 0 {
		return known, nil
	}
	var found cluster.Releases
	for v, err := range c.clm.All(ctx, versions, clmclient.ResourceQuery{Order: "created_time asc"}) {
		if err != nil {
			return nil, err
		}
		if v.DeletedTime != nil {
			continue
		}
		var r struct{ Version, Image string }
		if err := json.Unmarshal(v.Spec, &r); err != nil {
			return nil, fmt.Errorf("reading version %s: %w", v.Name, err)
		}
		found = append(found, cluster.Release{Version: r.Version, Image: r.Image})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.at = found, time.Now()
	return found, nil
}

// fresh returns the cached releases, nil when they are too old. Requests do not
// wait for the read of another request: when the lifecycle manager does not
// answer, each request ends at its own time limit.
func (c *catalogue) fresh() cluster.Releases {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) >= freshness {
		return nil
	}
	return c.known
}
