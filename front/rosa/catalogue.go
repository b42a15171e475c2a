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

// catalogue is what releases the region offers: the versions of the lifecycle
// manager, read again when what is known of them is older than a few seconds.
type catalogue struct {
	clm *clmclient.Client

	mu    sync.Mutex
	at    time.Time
	known cluster.Releases
}

const versions clmclient.Collection = "versions"

// freshness is how old what is known may be. A release that has come since is
// refused for so long, one that has gone is accepted.
const freshness = 2 * time.Second

// releases are what the region offers. They are the system's, of no account.
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

// fresh is what is known, if it is not too old. Nobody waits here for somebody
// else's question: when the lifecycle manager does not answer, each request
// ends in its own time.
func (c *catalogue) fresh() cluster.Releases {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) >= freshness {
		return nil
	}
	return c.known
}
