package maestro

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// unknownChanged makes runUnknownGauge count the unknown works again within seconds. One
// count serves many comparisons: after a restore all agents compare at the same time.
func (s *Server) unknownChanged() { s.unknownStale.Store(true) }

// runUnknownGauge updates the gauge of unknown works until ctx ends: after changes by this
// server, and every unknownEvery for changes by other servers.
func (s *Server) runUnknownGauge(ctx context.Context) error {
	tick := time.NewTicker(unknownTick)
	defer tick.Stop()
	var counted time.Time
	for {
		if s.unknownStale.Swap(false) || time.Since(counted) >= unknownEvery {
			counted = time.Now()
			if err := s.countUnknown(ctx); err != nil && ctx.Err() == nil {
				s.unknownStale.Store(true)
				s.log.LogAttrs(ctx, slog.LevelDebug, "unknown works not counted", slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

const (
	unknownTick  = 5 * time.Second // shortest time between two counts of unknown works
	unknownEvery = time.Minute     // longest time between two counts
)

func (s *Server) countUnknown(ctx context.Context) error {
	var n int64
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `select count(*) from unknown_work`).Scan(&n)
	})
	if err == nil {
		s.metrics.unknown.Set(float64(n))
	}
	return err
}
