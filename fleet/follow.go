package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/clm"
	"atoll.dev/store"
)

const (
	// pace is the shortest time between two plans: a feed that brings a thousand
	// changes one by one is not planned for a thousand times. Where plans take
	// long there are ten times as long without.
	pace = 20 * time.Millisecond
	// lookEvery is how often it is looked whether asks have been in vain.
	lookEvery = 2 * time.Second
	// hearEvery is how often the times of reports are read, which the feed does
	// not tell.
	hearEvery = 10 * time.Second
)

// Run does what no request asks for, until ctx ends: it asks for work on
// clusters that wait when there may be room for them, releases the placements
// of clusters that have gone without, and compares everything from time to
// time.
func (f *Fleet) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "the feed is followed anew", slog.Any("error", err))
			wait(ctx, 200*time.Millisecond)
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// follow reads everything, and then what changes. It ends with an error where
// it cannot know what it missed.
func (f *Fleet) follow(ctx context.Context) error {
	sub := f.opts.Feed.Subscribe(func(c *store.Change) bool {
		return c.Kind == kindMC || c.Kind == KindPlacement || c.Kind == kindCluster && c.Removed
	})
	defer sub.Close()
	b := newBoard()
	if err := f.load(ctx, b, kindMC); err != nil {
		return err
	}
	if err := f.load(ctx, b, KindPlacement); err != nil {
		return err
	}
	b.turns() // what was lost before is no news
	if err := f.sweep(ctx); err != nil {
		return err
	}
	look, hear, sweep := time.NewTicker(lookEvery), time.NewTicker(hearEvery), time.NewTicker(f.opts.Sweep)
	defer look.Stop()
	defer hear.Stop()
	defer sweep.Stop()
	next := time.NewTimer(0) // of the next plan
	defer next.Stop()
	planned, took, due := time.Time{}, time.Duration(0), true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Woken():
			rounds, err := sub.Take()
			if err != nil {
				return err
			}
			news, err := f.take(ctx, b, rounds)
			if err != nil {
				return err
			}
			f.tell(ctx, b)
			if news && !due {
				due = true
				next.Reset(max(0, max(pace, 10*took)-time.Since(planned)))
			}
		case <-next.C:
			planned, due = time.Now(), false
			f.ask(ctx, b, planned)
			took = time.Since(planned)
		case <-look.C:
			f.gauge(b)
			if b.waiting > 0 {
				// A report that only moved its time may have ended a silence.
				if err := f.load(ctx, b, kindMC); err != nil {
					return err
				}
				if !due {
					due = true
					next.Reset(0)
				}
			}
		case <-hear.C:
			if err := f.load(ctx, b, kindMC); err != nil {
				return err
			}
		case <-sweep.C:
			b.forget()
			if err := f.sweep(ctx); err != nil {
				return err
			}
		}
	}
}

// load reads all documents of a kind.
func (f *Fleet) load(ctx context.Context, b *board, kind store.Kind) error {
	q := store.Query{Kind: kind, Limit: 500, Deletion: store.WithDeleting}
	for {
		page, err := f.store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, d := range page.Documents {
			f.show(ctx, b, d)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// show applies a document to the board. One that cannot be read is left out: the
// board only guesses, and nothing is placed by it.
func (f *Fleet) show(ctx context.Context, b *board, d store.Document) bool {
	news, err := b.apply(d)
	if err != nil {
		f.log.LogAttrs(ctx, slog.LevelError, "a document cannot be read", slog.Any("error", err))
	}
	return news
}

// take applies what the feed brought.
func (f *Fleet) take(ctx context.Context, b *board, rounds []store.Round) (news bool, err error) {
	for _, r := range rounds {
		for _, c := range r.Changes {
			if c.Kind != kindCluster {
				news = f.show(ctx, b, c.Document) || news
				continue
			}
			if e, ok := b.entries[placementID(c.ID)]; ok && !e.removed {
				if err := f.releaseOrphan(ctx, c.ID); err != nil {
					return news, err
				}
			}
		}
	}
	return news, nil
}

// ask asks for work on those that wait and may find room.
func (f *Fleet) ask(ctx context.Context, b *board, now time.Time) {
	asks := b.plan(now)
	if len(asks) == 0 {
		return
	}
	if err := f.request(ctx, asks, now, "there may be room on a management cluster"); err != nil {
		if ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "work was not asked for clusters that wait", slog.Int("clusters", len(asks)), slog.Any("error", err))
		}
		return // the next look does it
	}
	for _, w := range asks {
		b.tried(w, now)
	}
	f.metrics.asked.Add(float64(len(asks)))
}

// requests are the names from which the ids of requests are made.
var requests = uuid.MustParse("6f3d5b0e-6a0e-5c3c-9d3b-0b6a3c2a7f10")

// request writes a request for work for each, as POST .../reconcile does. Its id
// is made of the placement's version and the second, so that of several
// processes that see the same room one asks.
func (f *Fleet) request(ctx context.Context, asks []waiter, now time.Time, reason string) error {
	ctx = store.WithActor(ctx, store.Actor{Principal: "system:fleet"})
	return f.store.Tx(ctx, func(tx *store.Tx) error {
		for _, w := range asks {
			cluster, err := tx.Get(ctx, kindCluster, w.cluster)
			if errors.Is(err, store.ErrNotFound) || err == nil && cluster.DeletedAt != nil && w.waits() {
				continue
			}
			if err != nil {
				return err
			}
			spec, err := json.Marshal(clm.ReconcileRequest{Kind: string(kindCluster), ID: w.cluster, Reason: reason, RequestedTime: now.UTC().Truncate(time.Microsecond)})
			if err != nil {
				return err
			}
			id := uuid.NewSHA1(requests, fmt.Appendf(nil, "%s/%d/%d/%s", w.id, w.version, now.Unix(), reason)).String()
			_, err = tx.Create(ctx, store.Document{Kind: kindRequest, ID: id, Spec: spec})
			if errors.Is(err, store.ErrExists) {
				continue
			}
			if err != nil {
				return err
			}
			note, err := json.Marshal(map[string]string{"request": id, "reason": reason})
			if err != nil {
				return err
			}
			if err := tx.Record(ctx, "reconcile", kindCluster, w.cluster, cluster.Scope, note); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *Fleet) gauge(b *board) {
	m := f.metrics
	m.waiting.Set(float64(b.waiting))
	m.capacity.Reset()
	m.reserved.Reset()
	for _, mc := range b.fleet(time.Now()) {
		for name, n := range mc.Capacity {
			m.capacity.WithLabelValues(mc.Name, name).Set(float64(n))
			m.reserved.WithLabelValues(mc.Name, name).Set(float64(mc.Reserved[name]))
		}
	}
}
