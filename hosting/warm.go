package hosting

import (
	apihosting "atoll.dev/api/hosting"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// WarmSpec returns the spec of planes that wait for new clusters: that of a cluster whose owner has chosen nothing. Its
// server name covers the names of all clusters that have none of their own.
func WarmSpec(releases Releases) controlplane.Spec {
	offered := make(cluster.Releases, len(releases))
	for i, v := range releases {
		offered[i] = cluster.Release{Version: string(v), Image: cluster.ReleaseImage(string(v))}
	}
	newest, _ := offered.Newest()
	return controlplane.Spec{Release: controlplane.Version(newest.Version),
		ServerNames: []string{apihosting.AnyServerName}, ServiceCIDR: cluster.DefaultServiceNetwork, Size: cluster.Small}
}
