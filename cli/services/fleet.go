package services

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/client/maestroclient"
	"atoll.dev/clm"
	"atoll.dev/fleet"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// hasFleet reports whether a lifecycle manager with these entities places clusters: it has clusters
// and management clusters, and no entity Placement.
func hasFleet(r *clm.Registry) bool {
	has := func(kind string) bool {
		return slices.ContainsFunc(r.Entities(), func(e clm.Entity) bool { return e.Kind == kind })
	}
	return has("Cluster") && has("ManagementCluster") && !has(string(fleet.KindPlacement))
}

// fleetKinds returns the kinds of the fleet's documents; none for a lifecycle manager without a fleet.
func fleetKinds(r *clm.Registry) []store.KindSpec {
	if !hasFleet(r) {
		return nil
	}
	return fleet.Kinds()
}

// fleetFlags are the flags of the fleet in CLM's process.
type fleetFlags struct {
	maestro    string
	endOrphans time.Duration
	forwardFor time.Duration
	lostAfter  time.Duration
}

func (f *fleetFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.maestro, "maestro", "",
		"URL of Maestro's REST API, from which the fleet reads the works of management clusters; without it, an "+
			"orphan of a forced deletion keeps its room until an operator frees it")
	cmd.Flags().DurationVar(&f.endOrphans, "end-orphans-after", 0,
		"delete orphans of forced deletions after this time; 0: operators delete them (atoll mc orphans)")
	cmd.Flags().DurationVar(&f.forwardFor, "forward-moved-for", 7*24*time.Hour,
		"how long the management cluster that a cluster has left forwards the connections of old kubeconfigs")
	cmd.Flags().DurationVar(&f.lostAfter, "recover-lost-after", 0,
		"recover the clusters of a management cluster whose agent has been lost for this time, at least 5m in "+
			"whole minutes, on others from their backups; 0: an operator does (atoll mc lost)")
}

// openWorks returns the client of Maestro that the fleet uses, and the function that closes it. The
// client is nil without --maestro.
func (f *fleetFlags) openWorks(identity *pki.Identity) (fleet.Works, func(), error) {
	if f.maestro == "" {
		return nil, func() {}, nil
	}
	o := maestroclient.Options{HTTP: f.maestro, GRPC: "127.0.0.1:0", Timeout: 10 * time.Second} // gRPC is not used
	if identity != nil {
		o.TLS = identity.ClientTLS("maestro")
	}
	m, err := maestroclient.New(o)
	if err != nil {
		return nil, nil, fmt.Errorf("--maestro: %w", err)
	}
	return fleet.MaestroWorks(m), func() { _ = m.Close() }, nil
}

// startFleet adds the fleet to a process that serves CLM's API.
func startFleet(s *System, p *parts, o *clm.Options, works fleet.Works, flags *fleetFlags) error {
	if !hasFleet(o.Database.Registry) {
		s.Log.Warn("clusters are not placed: the entities lack Cluster or ManagementCluster")
		return nil
	}
	f, err := fleet.New(p.ctx, fleet.Options{
		Store:            o.Database.Store,
		Feed:             o.Database.Feed,
		Works:            works,
		EndOrphansAfter:  flags.endOrphans,
		ForwardFor:       flags.forwardFor,
		RecoverLostAfter: flags.lostAfter,
		Logger:           s.Log,
		Metrics:          s.Ops.Registry,
	})
	if err != nil {
		return err
	}
	o.Extension = f
	p.run(f.Run)
	return nil
}
