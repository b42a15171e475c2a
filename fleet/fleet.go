package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/store"
)

// Options are the parameters of New. Store and Feed are needed.
type Options struct {
	Store *store.Store     // CLM's, with Kinds
	Feed  *store.Broadcast // of the same; somebody else runs it

	// Plane is what the control plane of one cluster takes; default 1 of planes
	// and 350 of memory_mib.
	Plane Amounts

	// Sweep is how often everything is compared with everything; default 30 s.
	Sweep time.Duration

	Logger  *slog.Logger // default: discard
	Metrics prometheus.Registerer
}

// Fleet places clusters. Several may share a database.
type Fleet struct {
	opts    Options
	log     *slog.Logger
	store   *store.Store
	metrics *metrics

	readings readings
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
	if o.Sweep <= 0 {
		o.Sweep = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := Migrate(ctx, o.Store); err != nil {
		return nil, err
	}
	return &Fleet{opts: o, log: o.Logger, store: o.Store, metrics: newMetrics(o.Metrics)}, nil
}

// Migrate brings the schema of fleet's side table up to date.
func Migrate(ctx context.Context, s *store.Store) error {
	if err := s.Migrate(ctx, "fleet", []string{reservations}); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	return nil
}
