package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
	"atoll.dev/store"
)

const (
	// pace is the shortest time between two plans, so that a thousand changes that come one by one do not
	// cost a thousand plans. After a long plan the pause is ten times as long as the plan.
	pace = 20 * time.Millisecond
	// lookEvery is how often follow checks whether requests were answered.
	lookEvery = 2 * time.Second
	// readReportsEvery is how often the times of reports are read, which the feed does
	// not bring.
	readReportsEvery = 30 * time.Second
)

// Run works in the background until ctx ends: it follows the feed, requests work for waiting clusters when
// there may be room for them, and checks the works of removed clusters.
func (f *Fleet) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { f.watchOrphans(ctx) })
	beside.Go(func() { f.compareHourly(ctx) })
	for ctx.Err() == nil {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "the feed is followed anew", slog.Any("error", err))
			pause.For(ctx, 200*time.Millisecond)
		}
	}
	return nil
}

// compareHourly compares all placements with clusters and sums. It takes long in a large
// region, and no other goroutine waits for it.
func (f *Fleet) compareHourly(ctx context.Context) {
	for ctx.Err() == nil {
		pause := f.opts.Compare
		if err := f.compare(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			f.log.LogAttrs(ctx, slog.LevelWarn, "placements were not compared with clusters", slog.Any("error", err))
			pause = min(pause, time.Minute)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.again: // the feed was lost, and is followed anew
		case <-time.After(pause):
		}
	}
}

// follow reads everything and then the changes. It ends with an error when it may have missed changes.
func (f *Fleet) follow(ctx context.Context) error {
	sub := f.opts.Feed.Subscribe(func(c *store.Change) bool {
		return c.Kind == kindMC || c.Kind == KindPlacement || c.Kind == kindCluster && c.Removed
	})
	defer sub.Close()
	// Meanwhile decisions use the board as it is. It is replaced after that, because the feed may have missed
	// removals.
	fresh := newBoard()
	if err := f.load(ctx, fresh, kindMC); err != nil {
		return err
	}
	if err := f.load(ctx, fresh, KindPlacement); err != nil {
		return err
	}
	fresh.lostChanges() // the adapters were asked about these already
	f.shared.replace(fresh)
	select {
	case f.again <- struct{}{}:
	default:
	}
	look, hear := time.NewTicker(lookEvery), time.NewTicker(readReportsEvery)
	defer look.Stop()
	defer hear.Stop()
	next := time.NewTimer(0) // of the next plan
	defer next.Stop()
	planned, took, due := time.Time{}, time.Duration(0), true
	gone := map[cluster.ID]bool{} // removed clusters whose placements orphanAll has not handled yet
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Woken():
			rounds, err := sub.Take()
			if err != nil {
				return err
			}
			news := f.take(ctx, rounds, gone)
			f.orphanAll(ctx, gone)
			f.requestLost(ctx)
			if news && !due {
				due = true
				next.Reset(max(0, max(pace, 10*took)-time.Since(planned)))
			}
		case <-next.C:
			planned, due = time.Now(), false
			f.ask(ctx, planned)
			took = time.Since(planned)
		case <-look.C:
			waiting, silent := 0, false
			f.shared.use(func(b *board) { waiting, silent = b.waiting, b.hasStaleReport(time.Now()) })
			f.gauge()
			f.orphanAll(ctx, gone)
			if waiting > 0 {
				// A report that only moved its time may have ended a silence.
				if silent {
					f.readReports(ctx)
				}
				if !due {
					due = true
					next.Reset(0)
				}
			}
		case <-hear.C:
			f.readReports(ctx)
			f.shared.use((*board).forget)
		}
	}
}

// readReports reads the times of reports on management clusters.
func (f *Fleet) readReports(ctx context.Context) {
	if err := f.load(ctx, nil, kindMC); err != nil && ctx.Err() == nil {
		f.log.LogAttrs(ctx, slog.LevelWarn, "the reports on management clusters were not read", slog.Any("error", err))
	}
}

// orphanAll handles the placements of removed clusters, at most 100 at a time, and deletes these clusters from gone.
// After an error they stay there for the next call.
func (f *Fleet) orphanAll(ctx context.Context, gone map[cluster.ID]bool) {
	const most = 100
	ids := make([]string, 0, min(most, len(gone)))
	for cluster := range gone {
		if ids = append(ids, placementID(cluster)); len(ids) == most {
			break
		}
	}
	if len(ids) == 0 {
		return
	}
	page, err := f.store.List(ctx, store.Query{Kind: KindPlacement, Where: store.Fragment{SQL: "d.id = any($1)",
		Args: []any{ids}}, Limit: most})
	for _, d := range page.Documents {
		if err == nil {
			err = f.orphan(ctx, clusterOf(d.ID))
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "placements of clusters that are gone were not looked at",
				slog.Any("error", err))
		}
		return
	}
	for _, id := range ids {
		delete(gone, clusterOf(id))
	}
}

// orphaned returns the placements without a cluster.
func (f *Fleet) orphaned() (all []orphanedPlacement) {
	f.shared.use(func(b *board) { all = b.orphaned(time.Now()) })
	return all
}

// load reads all documents of a kind onto a board; nil is the shared one.
func (f *Fleet) load(ctx context.Context, b *board, kind store.Kind) error {
	q := store.Query{Kind: kind, Limit: 5000, Bytes: 8 << 20, Deletion: store.WithDeleting}
	for {
		page, err := f.store.List(ctx, q)
		if err != nil {
			return err
		}
		show := func(b *board) {
			for _, d := range page.Documents {
				f.show(ctx, b, d)
			}
		}
		if b == nil {
			f.shared.use(show)
		} else {
			show(b)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// show applies a document to a board. It logs and skips one that cannot be read: a transaction checks each
// choice that is made by the board.
func (f *Fleet) show(ctx context.Context, b *board, d store.Document) bool {
	news, err := b.apply(d, time.Now())
	if err != nil {
		f.log.LogAttrs(ctx, slog.LevelError, "a document cannot be read", slog.Any("error", err))
	}
	return news
}

// take applies a batch of the feed, and adds removed clusters to gone.
func (f *Fleet) take(ctx context.Context, rounds []store.Round, gone map[cluster.ID]bool) (news bool) {
	f.shared.use(func(b *board) {
		for _, r := range rounds {
			for _, c := range r.Changes {
				if c.Kind != kindCluster {
					news = f.show(ctx, b, c.Document) || news
				} else {
					gone[cluster.ID(c.ID)] = true
				}
			}
		}
	})
	return news
}

// ask requests work for waiting clusters that may have room.
func (f *Fleet) ask(ctx context.Context, now time.Time) {
	var asks []waiter
	f.shared.use(func(b *board) { asks = b.plan(now) })
	if len(asks) == 0 {
		return
	}
	if err := f.request(ctx, asks, now, "there may be room on a management cluster"); err != nil {
		if ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "work was not asked for clusters that wait",
				slog.Int("clusters", len(asks)), slog.Any("error", err))
		}
		return // the next look does it
	}
	f.shared.use(func(b *board) {
		for _, w := range asks {
			b.noteAsk(w, now)
		}
	})
	f.metrics.asked.Add(float64(len(asks)))
}

// requests are the names from which the ids of requests are made.
var requests = uuid.MustParse("6f3d5b0e-6a0e-5c3c-9d3b-0b6a3c2a7f10")

// request writes a request for work for each, as POST .../reconcile does. The request's id consists of the
// placement's version and the second, so that of several processes that see the same room one requests.
func (f *Fleet) request(ctx context.Context, asks []waiter, now time.Time, reason string) error {
	ctx = store.WithActor(ctx, store.Actor{Principal: "system:fleet"})
	return f.store.Tx(ctx, func(tx *store.Tx) error {
		for _, w := range asks {
			cluster, err := tx.Get(ctx, kindCluster, string(w.cluster))
			if errors.Is(err, store.ErrNotFound) || err == nil && cluster.DeletedAt != nil && w.waits() {
				continue
			}
			if err != nil {
				return err
			}
			spec, err := json.Marshal(clm.ReconcileRequest{Kind: string(kindCluster), ID: string(w.cluster), Reason: reason,
				RequestedTime: now.UTC().Truncate(time.Microsecond)})
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
			if err := tx.Record(ctx, "reconcile", kindCluster, string(w.cluster), cluster.Scope, note); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *Fleet) gauge() {
	m := f.metrics
	var hosts []ManagementCluster
	f.shared.use(func(b *board) {
		hosts = b.fleet(time.Now())
		m.waiting.Set(float64(b.waiting))
	})
	m.capacity.Reset()
	m.reserved.Reset()
	for _, mc := range hosts {
		for name, n := range mc.Capacity {
			m.capacity.WithLabelValues(string(mc.Name), name).Set(float64(n))
			m.reserved.WithLabelValues(string(mc.Name), name).Set(float64(mc.Reserved[name]))
		}
	}
}
