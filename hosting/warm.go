package hosting

import (
	"math"

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

// WarmRoom returns how many more small planes fit into the capacity of the management cluster beside its clusters. A
// cluster whose plane has never started is not counted: it gets a warm plane, or starts in the room of one.
func (h *Hosting) WarmRoom(capacity map[string]int64) int {
	var used int64
	for _, id := range h.ids() {
		o, err := h.o.Planes.Observe(id)
		if err == nil && !o.Running && o.LastStart.Release == "" {
			continue
		}
		used += reservedUnits(o.Size.Size)
	}
	return roomFor(capacity, used)
}

// reservedUnits returns the units of capacity that a plane reserves. A plane that no size was ordered for reserves one.
func reservedUnits(size cluster.Size) int64 {
	if size == "" {
		return cluster.Small.Limits().Units
	}
	return size.Limits().Units
}

// roomFor returns how many small planes fit into a capacity of which so many units are used. Resources that the
// capacity does not name, and those that a plane does not take, limit nothing.
func roomFor(capacity map[string]int64, used int64) int {
	room := int64(math.MaxInt32)
	for name, one := range cluster.SmallPlane() {
		if all, isLimited := capacity[name]; isLimited {
			room = min(room, all/one-used)
		}
	}
	return int(max(room, 0))
}
