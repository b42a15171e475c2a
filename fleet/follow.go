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
	// minPlanPause is the shortest time between two plans, so that a thousand single changes do not cause a
	// thousand plans. After a long plan the pause is ten times as long as the plan.
	minPlanPause = 20 * time.Millisecond
	// checkRequestsEvery is how often follow checks whether adapters have answered requests for work.
	checkRequestsEvery = 2 * time.Second
	// readReportsEvery is how often follow reads the times of reports, which the feed does
	// not have.
	readReportsEvery = 30 * time.Second
)

// Run works in the background until ctx ends: it follows the feed, requests work for waiting clusters when
// there may be room for them, and checks the works of removed clusters.
func (f *Fleet) Run(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { f.watchOrphans(ctx) })
	others.Go(func() { f.compareHourly(ctx) })
	others.Go(func() { f.watchForwarding(ctx) })
	others.Go(func() { f.watchLosses(ctx) })
	for ctx.Err() == nil {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.log.LogAttrs(
				ctx,
				slog.LevelWarn,
				"fleet lost the feed; it reads all documents and subscribes again",
				slog.Any("error", err),
			)
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
			f.log.LogAttrs(
				ctx,
				slog.LevelWarn,
				"fleet cannot compare placements with clusters; it tries again",
				slog.Any("error", err),
			)
			pause = min(pause, time.Minute)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.feedRestarted:
		case <-time.After(pause):
		}
	}
}

// follow subscribes to the feed, reads all management clusters and placements onto a new inventory, and then applies
// the changes to it until ctx ends. It returns an error when it may have missed changes; the caller calls it again.
func (f *Fleet) follow(ctx context.Context) error {
	sub := f.opts.Feed.Subscribe(func(c *store.Change) bool {
		return c.Kind == kindMC || c.Kind == KindPlacement || c.Kind == kindCluster && c.Removed
	})
	defer sub.Close()
	// Decisions use the old inventory while follow fills the new one. follow replaces the inventory, because the
	// subscription before this one may have missed removals.
	fresh := newInventory()
	if err := f.load(ctx, fresh, kindMC); err != nil {
		return err
	}
	if err := f.load(ctx, fresh, KindPlacement); err != nil {
		return err
	}
	fresh.lostChanges() // fleet requested work for these before
	f.shared.replace(fresh)
	select {
	case f.feedRestarted <- struct{}{}:
	default:
	}
	checkTick, reportTick := time.NewTicker(checkRequestsEvery), time.NewTicker(readReportsEvery)
	defer checkTick.Stop()
	defer reportTick.Stop()
	planTimer := time.NewTimer(0) // of the next plan
	defer planTimer.Stop()
	planned, took, isPlanDue := time.Time{}, time.Duration(0), true
	removed := map[cluster.ID]bool{} // clusters whose placements markAllOrphaned has not handled yet
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Woken():
			rounds, err := sub.Take()
			if err != nil {
				return err
			}
			mayHaveRoom := f.applyRounds(ctx, rounds, removed)
			f.markAllOrphaned(ctx, removed)
			f.requestLost(ctx)
			if mayHaveRoom && !isPlanDue {
				isPlanDue = true
				planTimer.Reset(max(0, max(minPlanPause, 10*took)-time.Since(planned)))
			}
		case <-planTimer.C:
			planned, isPlanDue = time.Now(), false
			f.requestWork(ctx, planned)
			took = time.Since(planned)
		case <-checkTick.C:
			waiting, stale := 0, false
			f.shared.use(func(inv *inventory) {
				waiting, stale = inv.waiting+len(inv.growing), inv.hasStaleReport(time.Now())
			})
			f.setGauges()
			f.markAllOrphaned(ctx, removed)
			if waiting > 0 {
				// A management cluster may have sent a report that differs in its time only.
				if stale {
					f.readReports(ctx)
				}
				if !isPlanDue {
					isPlanDue = true
					planTimer.Reset(0)
				}
			}
		case <-reportTick.C:
			f.readReports(ctx)
			f.shared.use((*inventory).dropTombstones)
		}
	}
}

// readReports reads the times of reports on management clusters.
func (f *Fleet) readReports(ctx context.Context) {
	if err := f.load(ctx, nil, kindMC); err != nil && ctx.Err() == nil {
		f.log.LogAttrs(
			ctx,
			slog.LevelWarn,
			"fleet cannot read the reports on management clusters; it tries again",
			slog.Any("error", err),
		)
	}
}

// markAllOrphaned handles the placements of removed clusters, at most 100 in one call, and deletes
// these clusters from removed. Without the database they stay there for the next call. It leaves a damaged placement
// to compareHourly, and goes on with the others.
func (f *Fleet) markAllOrphaned(ctx context.Context, removed map[cluster.ID]bool) {
	const most = 100
	ids := make([]string, 0, min(most, len(removed)))
	for cluster := range removed {
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
		err = f.markOrphaned(ctx, clusterOf(d.ID))
		if store.IsTransient(err) {
			break
		}
		if err != nil {
			f.log.LogAttrs(ctx, slog.LevelError, "fleet cannot mark the placement of a removed cluster",
				slog.String("placement", d.ID), slog.Any("error", err))
			err = nil
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "fleet cannot mark placements of removed clusters; it tries again",
				slog.Any("error", err))
		}
		return
	}
	for _, id := range ids {
		delete(removed, clusterOf(id))
	}
}

// orphanedPlacements returns the Orphaned placements of the inventory, the oldest first.
func (f *Fleet) orphanedPlacements() (all []orphanedPlacement) {
	f.shared.use(func(inv *inventory) { all = inv.orphaned(time.Now()) })
	return all
}

// load reads all documents of a kind onto an inventory; nil is the shared one.
func (f *Fleet) load(ctx context.Context, inv *inventory, kind store.Kind) error {
	q := store.Query{Kind: kind, Limit: 5000, Bytes: 8 << 20, Deletion: store.WithDeleting}
	for {
		page, err := f.store.List(ctx, q)
		if err != nil {
			return err
		}
		apply := func(inv *inventory) {
			for _, d := range page.Documents {
				f.applyDocument(ctx, inv, d)
			}
		}
		if inv == nil {
			f.shared.use(apply)
		} else {
			apply(inv)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// applyDocument applies a document to an inventory, and returns whether a waiting cluster may have room now. It logs
// and skips a document that it cannot decode: a transaction checks each choice that fleet makes from the inventory.
func (f *Fleet) applyDocument(ctx context.Context, inv *inventory, d store.Document) (mayHaveRoom bool) {
	mayHaveRoom, err := inv.apply(d, time.Now())
	if err != nil {
		f.log.LogAttrs(ctx, slog.LevelError, "fleet cannot decode a document; it ignores it", slog.Any("error", err))
	}
	return mayHaveRoom
}

// applyRounds applies rounds of the feed to the inventory, adds removed clusters to removed, and returns whether a
// waiting cluster may have room now.
func (f *Fleet) applyRounds(ctx context.Context, rounds []store.Round,
	removed map[cluster.ID]bool) (mayHaveRoom bool) {
	f.shared.use(func(inv *inventory) {
		for _, r := range rounds {
			for _, c := range r.Changes {
				if c.Kind != kindCluster {
					mayHaveRoom = f.applyDocument(ctx, inv, c.Document) || mayHaveRoom
				} else {
					removed[cluster.ID(c.ID)] = true
				}
			}
		}
	})
	return mayHaveRoom
}

// requestWork plans requests for waiting clusters that may have room, and writes them. After an error the next plan
// contains the same clusters.
func (f *Fleet) requestWork(ctx context.Context, now time.Time) {
	var waiting []entryWithID
	f.shared.use(func(inv *inventory) { waiting = inv.planRequests(now) })
	if len(waiting) == 0 {
		return
	}
	if err := f.writeRequests(ctx, waiting, now, "there may be room on a management cluster"); err != nil {
		if ctx.Err() == nil {
			f.log.LogAttrs(ctx, slog.LevelWarn, "fleet cannot request work for waiting clusters; it tries again",
				slog.Int("clusters", len(waiting)), slog.Any("error", err))
		}
		return
	}
	f.shared.use(func(inv *inventory) {
		for _, w := range waiting {
			inv.recordRequest(w, now)
		}
	})
	f.metrics.requested.Add(float64(len(waiting)))
}

// requestNamespace is the namespace of the version 5 UUIDs of requests.
var requestNamespace = uuid.MustParse("6f3d5b0e-6a0e-5c3c-9d3b-0b6a3c2a7f10")

// writeRequests writes a request for work for each cluster, as POST .../reconcile does. A request's id is a hash of the
// placement's id and version, the second and the reason: if several processes find the same room, one of them creates
// the request, and the others find that it exists.
func (f *Fleet) writeRequests(ctx context.Context, waiting []entryWithID, now time.Time, reason string) error {
	ctx = store.WithActor(ctx, store.Actor{Principal: "system:fleet"})
	return f.store.Tx(ctx, func(tx *store.Tx) error {
		for _, w := range waiting {
			if err := writeRequest(ctx, tx, w, now, reason); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeRequest writes the request for one cluster in a transaction.
func writeRequest(ctx context.Context, tx *store.Tx, w entryWithID, now time.Time, reason string) error {
	owner, err := tx.Get(ctx, kindCluster, string(w.cluster))
	if errors.Is(err, store.ErrNotFound) || err == nil && owner.DeletedAt != nil && w.isWaiting() {
		return nil
	}
	if err != nil {
		return err
	}
	return requestWork(ctx, tx, owner, w, now, reason)
}

// requestWork writes the request for a document of the lifecycle manager, because of a change of a placement.
func requestWork(ctx context.Context, tx *store.Tx, d store.Document, because entryWithID, now time.Time,
	reason string) error {
	spec, err := json.Marshal(clm.ReconcileRequest{Kind: string(d.Kind), ID: d.ID, Reason: reason,
		RequestedTime: now.UTC().Truncate(time.Microsecond)})
	if err != nil {
		return err
	}
	name := fmt.Appendf(nil, "%s/%d/%d/%s", because.id, because.version, now.Unix(), reason)
	if d.Kind != kindCluster {
		name = fmt.Appendf(name, "/%s/%s", d.Kind, d.ID)
	}
	id := uuid.NewSHA1(requestNamespace, name).String()
	_, err = tx.Create(ctx, store.Document{Kind: kindRequest, ID: id, Spec: spec})
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	if err != nil {
		return err
	}
	note, err := json.Marshal(map[string]string{"request": id, "reason": reason})
	if err != nil {
		return err
	}
	return tx.Record(ctx, "reconcile", d.Kind, d.ID, d.Scope, note)
}

func (f *Fleet) setGauges() {
	m := f.metrics
	var hosts []ManagementCluster
	f.shared.use(func(inv *inventory) {
		hosts = inv.sortedHosts(time.Now())
		m.waiting.Set(float64(inv.waiting))
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
