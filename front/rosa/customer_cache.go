package rosa

import (
	"encoding/json"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
)

// resourceCacheSize bounds the JSON of the clusters and node pools that a customerAPI caches for all accounts, in
// bytes. A cluster with four reports has 5.4 KB (docs/decisions/145), so it is room for some 3,000.
const resourceCacheSize = 16 << 20

// bodyKey is the key of a cached body in Resource.Derived.
type bodyKey struct{ visibility progress.Visibility }

// clusterBody returns the body of an answer that shows a cluster. If the resource is in a clmclient.ResourceCache,
// clusterBody caches the body beside it. The callers of one account with the same visibility share the body and must
// not change it. A body that depends on the time is not cached (isIndependentOfTime).
func clusterBody(r clmclient.Resource, visibility progress.Visibility, now time.Time) (json.RawMessage, error) {
	if r.Derived != nil {
		if body, ok := r.Derived.Load(bodyKey{visibility}); ok {
			return body.(json.RawMessage), nil
		}
	}
	shown, err := toCluster(r, visibility, now)
	if err != nil {
		return nil, err
	}
	body, err := rest.MarshalJSON(shown)
	if err == nil && r.Derived != nil && isIndependentOfTime(shown) {
		r.Derived.Store(bodyKey{visibility}, body)
	}
	return body, err
}

// isIndependentOfTime reports whether the shown cluster stays the same until its resource changes. Only
// status.upgrade.canRollBack depends on the time: it changes from true to false when the window for a rollback ends.
func isIndependentOfTime(shown platform.Cluster) bool {
	return shown.Status.Upgrade == nil || !shown.Status.Upgrade.CanRollBack
}
