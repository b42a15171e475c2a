package maestro

import (
	"context"
	"log/slog"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/wire"
)

// agentOrders implements records.Agents by the parts of a server that reach agents.
type agentOrders struct{ s *Server }

// Forget drops a work from delivery whose bundle is removed.
func (a agentOrders) Forget(consumer work.Consumer, id work.ID, generation int64) {
	a.s.dispatch.Forget(consumer, id, generation)
}

// SendTombstone sends an agent one order to delete a work that has a tombstone. When the
// order is lost, the agent's next comparison finds the tombstone.
func (a agentOrders) SendTombstone(ctx context.Context, w delivery.Work) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m := wire.EncodeTombstone(w.Consumer, w.ID, w.Generation, a.s.opts.SourceID, time.Now())
	if err := a.s.dispatch.Publish(ctx, w.Consumer, m); err != nil {
		a.s.log.LogAttrs(ctx, slog.LevelDebug, "order to delete a work not sent", slog.String("consumer", string(w.Consumer)),
			slog.String("bundle", string(w.ID)), slog.Any("error", err))
	}
}

// AskDigest asks the agent of a new consumer to compare. The agent may already run and hold
// works, from before the database was lost (I8). Only this request makes it compare; an
// agent that is away compares when it connects.
func (a agentOrders) AskDigest(ctx context.Context, consumer work.Consumer) {
	if err := a.s.comparer.SendDigest(ctx, consumer, work.DigestAnswer{Ask: true}); err != nil {
		a.s.log.LogAttrs(ctx, slog.LevelDebug, "the agent of a new consumer was not asked",
			slog.String("consumer", string(consumer)), slog.Any("error", err))
	}
}
