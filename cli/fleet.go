package cli

import (
	"slices"

	"atoll.dev/clm"
	"atoll.dev/fleet"
	"atoll.dev/store"
)

// hasFleet says whether a lifecycle manager with these entities places
// clusters: it has clusters and management clusters, and no placements of its
// own.
func hasFleet(r *clm.Registry) bool {
	has := func(kind string) bool {
		return slices.ContainsFunc(r.Entities(), func(e clm.Entity) bool { return e.Kind == kind })
	}
	return has("Cluster") && has("ManagementCluster") && !has(string(fleet.KindPlacement))
}

func fleetKinds(r *clm.Registry) []store.KindSpec {
	if !hasFleet(r) {
		return nil
	}
	return fleet.Kinds()
}

// startFleet adds the fleet to a process that serves CLM's API.
func startFleet(s *service, p *parts, o *clm.Options) error {
	if !hasFleet(o.Database.Registry) {
		s.log.Warn("the entities have no Cluster or no ManagementCluster, so nothing is placed")
		return nil
	}
	f, err := fleet.New(p.ctx, fleet.Options{Store: o.Database.Store, Feed: o.Database.Feed, Logger: s.log, Metrics: s.ops.Registry})
	if err != nil {
		return err
	}
	o.Extension = f
	p.run(f.Run)
	return nil
}
