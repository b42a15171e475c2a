package fleet

import (
	"context"
	"log/slog"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

const (
	// forwardFor is how long the source of a move forwards connections.
	forwardFor = 7 * 24 * time.Hour
	// checkForwardingEvery is how often fleet looks for sources that have forwarded for so long.
	checkForwardingEvery = time.Minute
)

// watchForwarding finishes the moves whose sources have forwarded for ForwardFor, until ctx ends.
func (f *Fleet) watchForwarding(ctx context.Context) {
	tick := time.NewTicker(checkForwardingEvery)
	defer tick.Stop()
	for {
		f.finishForwarding(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// finishForwarding finishes the moves whose sources have forwarded for ForwardFor at now. One that fails is tried again
// in the next pass, and does not stop the others.
func (f *Fleet) finishForwarding(ctx context.Context, now time.Time) {
	var due []cluster.ID
	f.shared.use(func(inv *inventory) {
		for id, since := range inv.forwarding {
			if now.Sub(since) >= f.opts.ForwardFor {
				due = append(due, clusterOf(id))
			}
		}
	})
	ctx = store.WithActor(ctx, store.Actor{Principal: "system:fleet"})
	for _, id := range due {
		if _, err := f.advanceMove(ctx, id, api.MoveOrder{Step: api.Finish}); err != nil && ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "fleet cannot finish a move; it tries again",
				slog.String("cluster", string(id)), slog.Any("error", err))
		}
	}
}
