package maestro

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/wire"
)

// askSpecs asks an agent for the content of works that it holds. Agents of Open Cluster
// Management ignore the request.
func (s *Server) askSpecs(ctx context.Context, consumer string, ids []string) {
	data, err := json.Marshal(work.SpecsWanted{IDs: ids})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err = s.publish(ctx, consumer, bus.Event{
		DataContentType: wire.JSONType,
		ID:              uuid.NewString(),
		Source:          s.opts.SourceID,
		Type:            work.ServerSpecs,
		Time:            time.Now().UTC(),
		Extensions:      map[string]string{work.ExtClusterName: consumer},
		Data:            data,
	})
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "agent not asked for its works", slog.String("consumer", consumer),
			slog.Any("error", err))
	}
}

// askAdoptions asks an agent again for the works that operators want adopted.
func (s *Server) askAdoptions(ctx context.Context, consumer string) error {
	var ids []string
	err := s.store.Read(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(
			ctx,
			`select id from unknown_work where consumer = $1 and adopt_source <> '' order by id limit 100`,
			consumer,
		)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err == nil && len(ids) > 0 {
		s.askSpecs(ctx, consumer, ids)
	}
	return err
}

// unknownChanged makes runUnknownGauge count the unknown works again within seconds. One
// count serves many comparisons: after a restore all agents compare at the same time.
func (s *Server) unknownChanged() { s.unknownStale.Store(true) }

// runUnknownGauge updates the gauge of unknown works until ctx ends: after changes by this
// server, and every unknownEvery for changes by other servers.
func (s *Server) runUnknownGauge(ctx context.Context) error {
	tick := time.NewTicker(gaugeInterval)
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

// unknownEvery is the longest time between two counts of unknown works.
const unknownEvery = time.Minute

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
