package hosting

import (
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// WarmSpec returns the spec of planes that wait for new clusters: that of a cluster whose owner has chosen nothing. Its
// server name, a wildcard, covers the names of all clusters in a domain: a plane's own authority signs it, whom nobody
// but the plane's cluster trusts.
func WarmSpec(releases Releases, domain string) controlplane.Spec {
	offered := make(cluster.Releases, len(releases))
	for i, v := range releases {
		offered[i] = cluster.Release{Version: string(v), Image: cluster.ReleaseImage(string(v))}
	}
	newest, _ := offered.Newest()
	return controlplane.Spec{Release: controlplane.Version(newest.Version),
		ServerNames: []string{"*." + domain}, ServiceCIDR: cluster.DefaultServiceNetwork, Size: cluster.Small}
}
