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

// Options are the parameters of New. Store and Feed are needed.
type Options struct {
	Store *store.Store     // CLM's, with Kinds
	Feed  *store.Broadcast // of the same; somebody else runs it

	// Plane is what the control plane of one cluster takes; default 1 of planes
	// and 350 of memory_mib.
	Plane Amounts

	// Works is what runs on management clusters. nil: nobody can tell; then what
	// a forced deletion left behind holds its room until an operator frees it.
	Works Works

	// WorkSource is the source of the works with HostedClusters; default
	// "hosted-cluster".
	WorkSource string

	// EndOrphansAfter is when what a forced deletion left behind is ended without
	// anybody's asking; 0 is never.
	EndOrphansAfter time.Duration

	// OrphansEvery is how often what was left behind is looked at, and
	// ConfirmAfter how long nothing of it must be found; default 5 s and 30 s.
	OrphansEvery, ConfirmAfter time.Duration

	// Compare is how often all placements are compared with clusters and sums;
	// default 1 h.
	Compare time.Duration

	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
}

// Fleet places clusters. Several may share a database.
type Fleet struct {
	opts    Options
	log     *slog.Logger
	store   *store.Store
	metrics *metrics

	shared shared
	again  chan struct{} // holds a token when the feed was followed anew
	looks  atomic.Int64  // at what was left behind
}

// shared is the board, for all goroutines.
type shared struct {
	mu sync.Mutex
	b  *board
}

// use calls f with the board. f is quick.
func (s *shared) use(f func(*board)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.b == nil {
		s.b = newBoard()
	}
	f(s.b)
}

// replace puts another board in the place of the board. What transactions are
// about to reserve stays held.
func (s *shared) replace(b *board) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.b != nil {
		b.held = s.b.held
		for id, m := range s.b.mcs {
			if have, ok := b.mcs[id]; ok && have.reportTime().Equal(m.reportTime()) {
				have.moved = m.moved
				b.mcs[id] = have
			}
		}
	}
	s.b = b
}

// New returns a fleet whose routes work at once, and which does the rest in Run.
// It brings the schema of its side table up to date.
func New(ctx context.Context, o Options) (*Fleet, error) {
	if o.Store == nil || o.Feed == nil {
		return nil, errors.New("fleet: a store and its feed are needed")
	}
	if o.Plane == nil {
		o.Plane = Amounts{"planes": 1, "memory_mib": 350}
	}
	o.Plane = maps.Clone(o.Plane)
	for _, d := range []struct {
		is       *time.Duration
		fallback time.Duration
	}{{&o.OrphansEvery, orphansEvery}, {&o.ConfirmAfter, confirmAfter}, {&o.Compare, time.Hour}} {
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
	return &Fleet{opts: o, log: o.Logger, store: o.Store, metrics: newMetrics(o.Metrics), again: make(chan struct{},
		1)}, nil
}

// Migrate brings the schema of fleet's side table up to date.
func Migrate(ctx context.Context, s *store.Store) error {
	if err := s.Migrate(ctx, "fleet", []string{reservations}); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	return nil
}
