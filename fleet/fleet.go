package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/cluster"
	"atoll.dev/store"
)

// Options configure a Fleet. Store and Feed are required.
type Options struct {
	Store *store.Store     // CLM's, with Kinds
	Feed  *store.Broadcast // of the same store; the caller runs it

	// Plane has the amounts that one control plane reserves; default 1 of planes and 350 of memory_mib.
	Plane Amounts

	// Works reads and deletes the works on management clusters. Without it a forced deletion keeps its reservation
	// until an operator releases it.
	Works Works

	// WorkSource is the source of the works with HostedClusters; default
	// "hosted-cluster".
	WorkSource string

	// EndOrphansAfter is how long after a forced deletion fleet deletes the cluster's works; 0: never.
	EndOrphansAfter time.Duration

	// OrphansEvery is how often fleet reads the works of orphaned placements. ConfirmAfter is how long it must find
	// none before it releases the placement. Defaults 5 s and 30 s.
	OrphansEvery, ConfirmAfter time.Duration

	// ForwardFor is how long the source of a move forwards the connections of old kubeconfigs; default 7 days.
	ForwardFor time.Duration

	// RecoverLostAfter is how long the agent of a management cluster must be lost until fleet recovers its clusters on
	// others from their backups; 0: never, an operator orders it. At least cluster.MinRecoverLostAfter.
	RecoverLostAfter time.Duration

	// Compare is how often fleet compares all placements with clusters and sums; default 1 h.
	Compare time.Duration

	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
}

// Fleet places clusters on management clusters. Several processes may share a database. Its methods may be called
// concurrently.
type Fleet struct {
	opts    Options
	log     *slog.Logger
	store   *store.Store
	metrics *metrics

	shared        shared
	feedRestarted chan struct{} // has a token when follow has subscribed to the feed again
	orphanPasses  atomic.Int64  // passes of checkOrphans, for tests
}

// shared guards the inventory.
type shared struct {
	mu  sync.Mutex
	inv *inventory
}

// use calls f with the inventory locked. f does no I/O.
func (s *shared) use(f func(*inventory)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inv == nil {
		s.inv = newInventory()
	}
	f(s.inv)
}

// replace replaces the inventory. The reservations of transactions in progress stay.
func (s *shared) replace(inv *inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inv != nil {
		inv.inProgress = s.inv.inProgress
		for id, m := range s.inv.mcs {
			if have, ok := inv.mcs[id]; ok && have.reportTime().Equal(m.reportTime()) {
				have.reportMovedAt = m.reportMovedAt
				inv.mcs[id] = have
			}
		}
	}
	s.inv = inv
}

// New migrates the schema of fleet's table of reservations, and returns a Fleet whose routes work at once. The caller
// calls Run for the work in the background.
func New(ctx context.Context, o Options) (*Fleet, error) {
	if o.Store == nil || o.Feed == nil {
		return nil, errors.New("fleet: Options need Store and Feed")
	}
	if err := cluster.CheckRecoverLostAfter(o.RecoverLostAfter); err != nil {
		return nil, fmt.Errorf("fleet: RecoverLostAfter: %w", err)
	}
	if o.Plane == nil {
		o.Plane = cluster.SmallPlane()
	}
	o.Plane = maps.Clone(o.Plane)
	for _, d := range []struct {
		is       *time.Duration
		fallback time.Duration
	}{{&o.OrphansEvery, orphansEvery}, {&o.ConfirmAfter, confirmAfter}, {&o.Compare, time.Hour},
		{&o.ForwardFor, forwardFor}} {
		if *d.is <= 0 {
			*d.is = d.fallback
		}
	}
	o.WorkSource = cmp.Or(o.WorkSource, string(cluster.AdapterHostedCluster))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := Migrate(ctx, o.Store); err != nil {
		return nil, err
	}
	return &Fleet{
		opts:    o,
		log:     o.Logger,
		store:   o.Store,
		metrics: newMetrics(o.Metrics),
		feedRestarted: make(chan struct{},
			1),
	}, nil
}

// migrations make fleet's table of reservations; add only to the end.
var migrations = []string{reservationTable}

// SchemaVersion returns the version of the schema of fleet's table that this program knows.
func SchemaVersion() int { return len(migrations) }

// Migrate migrates the schema of fleet's table of reservations.
func Migrate(ctx context.Context, s *store.Store) error {
	if err := s.Migrate(ctx, "fleet", migrations); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	return nil
}
