package fleet

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// A management cluster that is lost takes the news of its clusters with it.
// Their adapters say so, and that it is back, when work is asked for them.

// lost says whether a management cluster's agent is reported as lost.
func (r reading) lost() bool {
	for _, report := range r.seen.Reports {
		for _, c := range report.Conditions {
			if report.Adapter == presenceAdapter && c.Type == "Available" {
				return c.Status == "False"
			}
		}
	}
	return false
}

func (b *board) lose(mc string, yes bool) {
	if b.lost[mc] == yes {
		return
	}
	b.turned = true
	if yes {
		b.lost[mc] = true
	} else {
		delete(b.lost, mc)
	}
}

// turns returns the placements of which it was not said yet that their
// management cluster is lost, and those of which it was, and is not. It goes by
// what is, not by what changed: a feed may bring both at once, and in any order.
func (b *board) turns() (gone, back []waiter) {
	if !b.turned {
		return nil, nil
	}
	b.turned = false
	for id, e := range b.entries {
		lost := !e.removed && b.lost[e.mc]
		switch {
		case lost && !b.told[id]:
			b.told[id] = true
			gone = append(gone, waiter{id, e})
		case !lost && b.told[id] && !e.removed:
			back = append(back, waiter{id, e})
		}
	}
	for id := range b.told {
		if e := b.entries[id]; e.removed || !b.lost[e.mc] {
			delete(b.told, id)
		}
	}
	return gone, back
}

// tell asks for work on the clusters of management clusters that were lost, or
// are back. It is a hint: adapters look at all clusters from time to time.
func (f *Fleet) tell(ctx context.Context) {
	var gone, back []waiter
	f.shared.use(func(b *board) { gone, back = b.turns() })
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
