package fleet

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"atoll.dev/cluster"
)

// A lost management cluster sends no status of its clusters. Their adapters report the loss, and its end,
// when fleet requests work for them.

// lost reports whether the agent of a management cluster is reported as lost.
func (r reading) lost() bool {
	for _, report := range r.seen.Reports {
		for _, c := range report.Conditions {
			if report.Adapter == presenceAdapter && c.Type == conditionAvailable {
				return c.Status == "False"
			}
		}
	}
	return false
}

// setLost records whether a management cluster is lost.
func (b *board) setLost(mc cluster.ManagementClusterID, lost bool) {
	if b.lost[mc] == lost {
		return
	}
	b.lostMayDiffer = true
	if lost {
		b.lost[mc] = true
	} else {
		delete(b.lost, mc)
	}
}

// lostChanges returns the placements whose management cluster is lost without that a report was requested, and those
// whose management cluster is back after one was. It compares states, not changes: a batch of the feed may bring the
// loss and its end together, in any order.
func (b *board) lostChanges() (gone, back []waiter) {
	if !b.lostMayDiffer {
		return nil, nil
	}
	b.lostMayDiffer = false
	for id, e := range b.entries {
		lost := !e.removed && b.lost[e.mc]
		switch {
		case lost && !b.reportedLost[id]:
			b.reportedLost[id] = true
			gone = append(gone, waiter{id, e})
		case !lost && b.reportedLost[id] && !e.removed:
			back = append(back, waiter{id, e})
		}
	}
	for id := range b.reportedLost {
		if e := b.entries[id]; e.removed || !b.lost[e.mc] {
			delete(b.reportedLost, id)
		}
	}
	return gone, back
}

// requestLost requests work for the clusters of management clusters that were lost, or are back. A failed request is
// not repeated: adapters check all clusters from time to time.
func (f *Fleet) requestLost(ctx context.Context) {
	var gone, back []waiter
	f.shared.use(func(b *board) { gone, back = b.lostChanges() })
	ask := func(clusters []waiter, why string) {
		for part := range slices.Chunk(clusters, maxAsked) {
			if err := f.request(ctx, part, time.Now(), why); err != nil {
				f.log.LogAttrs(ctx, slog.LevelWarn, "work was not asked for clusters of a management cluster",
					slog.Int("clusters", len(clusters)), slog.Any("error", err))
				return
			}
		}
	}
	ask(gone, "the management cluster was lost")
	ask(back, "the management cluster is heard again")
}
