package rosa

import (
	"encoding/json"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
)

// recentLimit bounds the JSON of the resources that a customerAPI keeps, in bytes: some 3,000 clusters.
const recentLimit = 16 << 20

// clusterBody returns the body of an answer with a cluster. Of a resource that clmclient.Recent keeps, it makes the
// body once for all callers who may read the same, unless time alone can change it (isLasting).
func clusterBody(r clmclient.Resource, visibility progress.Visibility, now time.Time) (json.RawMessage, error) {
	if r.Derived != nil {
		if body, ok := r.Derived.Load(visibility); ok {
			return body.(json.RawMessage), nil
		}
	}
	shown, err := toCluster(r, visibility, now)
	if err != nil {
		return nil, err
	}
	body, err := rest.MarshalJSON(shown)
	if err == nil && r.Derived != nil && isLasting(shown) {
		r.Derived.Store(visibility, body)
	}
	return body, err
}

// isLasting reports whether a cluster is shown in the same way at each later time, as long as its resource is the same.
// The end of the window for a rollback is the only change that time alone makes.
func isLasting(shown platform.Cluster) bool {
	return shown.Status.Upgrade == nil || !shown.Status.Upgrade.CanRollBack
}
