package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// An orphan is a work or hosted cluster on a management cluster whose owner CLM does not have any more,
// after a forced deletion or a restored database. The reservation stays until the management cluster
// confirms that the orphan does not exist any more (I9).

const (
	// orphansEvery is how often fleet reads the works of orphaned placements.
	orphansEvery = 5 * time.Second
	// confirmAfter is how long a connected management cluster must have no work of a cluster before fleet
	// frees the cluster's room. Works in transit arrive within this time, and after a loss of Maestro's
	// database agents report the works that they hold.
	confirmAfter = 30 * time.Second
	// maxOrphanChecks bounds the orphans of a pass, and maxFailures the failed requests after which a pass ends.
	maxOrphanChecks = 100
	maxFailures     = 3
	// maxOrphansShown bounds how many orphans a list reads with their objects.
	maxOrphansShown = 1000
)

// watchOrphans checks orphaned placements until ctx ends.
func (f *Fleet) watchOrphans(ctx context.Context) {
	if f.opts.Works == nil {
		return
	}
	tick := time.NewTicker(f.opts.OrphansEvery)
	defer tick.Stop()
	known := map[cluster.ID]*orphanCheck{} // by cluster
	for {
		f.orphanPasses.Add(1)
		f.checkOrphans(ctx, known)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// orphanCheck is the last check of an orphaned placement.
type orphanCheck struct {
	checkedAt   time.Time
	absentSince time.Time // when fleet first found no work of the cluster; zero: the last check found works
}

// checkOrphans checks the orphaned placements whose last check is the oldest.
func (f *Fleet) checkOrphans(ctx context.Context, known map[cluster.ID]*orphanCheck) {
	orphans := f.orphanedPlacements()
	stillOrphaned := make(map[cluster.ID]bool, len(orphans))
	for _, o := range orphans {
		stillOrphaned[o.cluster] = true
		if known[o.cluster] == nil {
			known[o.cluster] = &orphanCheck{}
		}
	}
	for cluster := range known {
		if !stillOrphaned[cluster] {
			delete(known, cluster)
		}
	}
	slices.SortStableFunc(orphans, func(a, b orphanedPlacement) int {
		return known[a.cluster].checkedAt.Compare(
			known[b.cluster].checkedAt)
	})
	unknown := map[cluster.ManagementCluster][]Work{} // by management cluster
	failed := 0
	for _, o := range orphans[:min(len(orphans), maxOrphanChecks)] {
		seen := known[o.cluster]
		seen.checkedAt = time.Now()
		err := f.checkOrphan(ctx, o, seen, unknown)
		if err != nil && ctx.Err() == nil && failed == 0 {
			f.log.LogAttrs(ctx, slog.LevelWarn, "fleet cannot check the works of a removed cluster; it tries again",
				slog.String("cluster", string(o.cluster)), slog.Any("error", err))
		}
		if err != nil {
			if failed++; failed == maxFailures {
				return // Maestro does not answer
			}
		}
	}
}

// orphanedPlacement is a placement whose cluster does not exist any more.
type orphanedPlacement struct {
	cluster    cluster.ID
	mc         cluster.ManagementCluster
	reservedOn cluster.ManagementCluster // on which a move reserves room, too; "" for none
	since      time.Time
	connected  bool
}

// checkOrphan releases the placement of a removed cluster if its management cluster is connected and has had none of
// the cluster's works for ConfirmAfter. While there are works, it deletes them once the placement has been orphaned
// for EndOrphansAfter, if the operator has set that.
func (f *Fleet) checkOrphan(ctx context.Context, o orphanedPlacement, seen *orphanCheck,
	unknown map[cluster.ManagementCluster][]Work) error {
	works, err := f.listWorksOf(ctx, o, unknown)
	if err != nil {
		return err
	}
	ctx = store.WithActor(ctx, store.Actor{Principal: "system:fleet"})
	now := time.Now()
	if len(works) > 0 || !o.connected {
		seen.absentSince = time.Time{}
		if f.opts.EndOrphansAfter > 0 && now.Sub(o.since) >= f.opts.EndOrphansAfter {
			return f.endWorks(ctx, works, fmt.Sprintf("its cluster is gone for more than %s", f.opts.EndOrphansAfter))
		}
		return nil
	}
	if seen.absentSince.IsZero() {
		seen.absentSince = now
	}
	if now.Sub(seen.absentSince) < f.opts.ConfirmAfter {
		return nil
	}
	released, err := f.release(ctx, o.cluster, "nothing of it is left on "+string(o.mc),
		func(c *store.Document, p placement) error {
			if c != nil || p.State != api.Orphaned {
				return errClusterExists
			}
			return nil
		})
	if errors.Is(err, errClusterExists) {
		return nil
	}
	if released {
		f.metrics.countOutcome(outcomeOrphan)
	}
	return err
}

// listWorksOf returns the works of a cluster: those of Maestro, and, of the works that only the agent knows, the one
// with the cluster's HostedCluster. unknown caches the unknown works of each management cluster for one pass.
func (f *Fleet) listWorksOf(ctx context.Context, o orphanedPlacement,
	unknown map[cluster.ManagementCluster][]Work) (all []Work, err error) {
	err = f.opts.Works.Each(ctx, o.cluster, "", func(batch []Work) error {
		all = append(all, batch...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	mcs := []cluster.ManagementCluster{o.mc, o.reservedOn}
	for _, mc := range slices.DeleteFunc(mcs, func(mc cluster.ManagementCluster) bool { return mc == "" }) {
		held, read := unknown[mc]
		if !read {
			if held, err = f.opts.Works.Unknown(ctx, mc); err != nil {
				return nil, err
			}
			unknown[mc] = held
		}
		for _, u := range held {
			if u.ID == work.BundleID(f.opts.WorkSource, work.Consumer(mc), hostedClusterWork+string(o.cluster)) {
				u.Cluster = o.cluster
				all = append(all, u)
			}
		}
	}
	return all, nil
}

// hostedClusterWork is the prefix of the name of the work with a cluster's HostedCluster;
// the cluster's id follows (adapters/hosted-cluster).
const hostedClusterWork = "work-"

var errNoWorks = rest.Errorf(http.StatusServiceUnavailable, codeState,
	"this lifecycle manager was started without Maestro (--maestro), and cannot read the works of management clusters")

// endWorks orders the deletion of works that are not being deleted yet. It records the actor and the reason of each
// in the history of the work's cluster.
func (f *Fleet) endWorks(ctx context.Context, works []Work, reason string) error {
	actor := store.ActorFrom(ctx)
	for _, w := range works {
		if w.Deleting != nil {
			continue
		}
		err := f.opts.Works.End(remote.WithActor(ctx, remote.Actor{Principal: actor.Principal, Account: actor.Account,
			RequestID: actor.RequestID}), w, reason)
		if err != nil {
			return err
		}
		note, err := json.Marshal(map[string]string{"reason": reason, "work": string(w.ID), "name": w.Name,
			"management_cluster": string(w.ManagementCluster)})
		if err != nil {
			return err
		}
		id := cmp.Or(string(w.Cluster), string(w.ID))
		if err := f.store.Tx(ctx, func(tx *store.Tx) error {
			return tx.Record(ctx, actionEndOrphan, kindCluster, id, "",
				note)
		}); err != nil {
			return fmt.Errorf("recording that work %s was ended: %w", w.ID, err)
		}
		f.log.LogAttrs(ctx, slog.LevelInfo, "a work without an owner is ended", slog.String("work", string(w.ID)),
			slog.String("management_cluster", string(w.ManagementCluster)),
			slog.String("cluster", string(w.Cluster)), slog.String("by", actor.Principal), slog.String("reason", reason))
	}
	return nil
}

// Actions of the history of a cluster.
const (
	actionEndOrphan = "end-orphan"
	actionFreeRoom  = "free-room"
)

// orphans lists the works and reservations without an owner, on one management cluster or on all (""). The oldest
// comes first. It reads at most maxOrphansShown works.
func (f *Fleet) orphans(ctx context.Context, mc cluster.ManagementCluster) ([]api.Orphan, error) {
	if f.opts.Works == nil {
		return nil, errNoWorks
	}
	list := []api.Orphan{}
	haveWorks := map[cluster.ID]bool{}
	err := f.opts.Works.Each(ctx, "", mc, func(batch []Work) error {
		existing, err := f.existingClusters(ctx, batch)
		if err != nil {
			return err
		}
		for _, w := range batch {
			if existing[w.Cluster] || len(list) == maxOrphansShown {
				continue
			}
			o, err := f.describeOrphan(ctx, w)
			if err != nil {
				return err
			}
			haveWorks[w.Cluster] = true
			list = append(list, o)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	unknown, err := f.opts.Works.Unknown(ctx, mc)
	if err != nil {
		return nil, err
	}
	for _, w := range unknown {
		list = append(list, api.Orphan{ID: string(w.ID), Kind: api.UnknownWork,
			ManagementCluster: string(w.ManagementCluster),
			What:              []string{}, Size: Amounts{}, Since: w.Since})
	}
	held, err := f.orphanedReservations(ctx, mc, haveWorks)
	if err != nil {
		return nil, err
	}
	list = append(list, held...)
	slices.SortStableFunc(list, func(a, b api.Orphan) int {
		return cmp.Or(a.Since.Compare(b.Since),
			strings.Compare(a.ID, b.ID))
	})
	return list, nil
}

// existingClusters returns which of the clusters of works exist in CLM.
func (f *Fleet) existingClusters(ctx context.Context, works []Work) (map[cluster.ID]bool, error) {
	ids := make([]cluster.ID, 0, len(works))
	for _, w := range works {
		ids = append(ids, w.Cluster)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	existing := map[cluster.ID]bool{}
	q := store.Query{Kind: kindCluster, Where: store.Fragment{SQL: "d.id = any($1)", Args: []any{ids}},
		Limit: max(1, len(ids)), Deletion: store.WithDeleting, WireOnly: true}
	page, err := f.store.List(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("reading the owners of works: %w", err)
	}
	for _, d := range page.Documents {
		existing[cluster.ID(d.ID)] = true
	}
	return existing, nil
}

// describeOrphan returns a work without a cluster as the API shows it, with its objects, and the time and actor of the
// cluster's removal from the history.
func (f *Fleet) describeOrphan(ctx context.Context, w Work) (o api.Orphan, err error) {
	full, ok, err := f.opts.Works.Get(ctx, w.ManagementCluster, w.ID)
	if err != nil {
		return o, err
	}
	if ok {
		w.Objects = full.Objects
	}
	o = api.Orphan{ID: string(w.ID), Kind: api.Work, ManagementCluster: string(w.ManagementCluster),
		ClusterID: string(w.Cluster), Name: w.Name,
		What: append([]string{}, w.Objects...), Size: Amounts{}, Since: w.Since, EndingSince: w.Deleting}
	for _, object := range w.Objects {
		if strings.HasPrefix(object, "HostedCluster ") {
			o.Size = plus(o.Size, f.opts.Plane, 1)
		}
	}
	at, by, err := f.removalRecord(ctx, w.Cluster)
	if by != "" {
		o.Since, o.RemovedBy = at, by
	}
	return o, err
}

// removalRecord returns when a cluster was removed, and who removed it; "" if CLM's history has no such record.
func (f *Fleet) removalRecord(ctx context.Context, cluster cluster.ID) (at time.Time, by string, err error) {
	records, err := f.store.History(ctx, store.HistoryQuery{Kind: kindCluster, ID: string(cluster), Limit: 20})
	if err != nil {
		return at, "", fmt.Errorf("reading the history of cluster %s: %w", cluster, err)
	}
	for _, r := range records { // the latest first; force-delete is beside remove
		if r.Action == "force-delete" || r.Action == "remove" && by == "" {
			at, by = r.At, r.Actor.Principal
		}
	}
	return at, by, nil
}

// orphanedReservations returns the orphaned placements of clusters without works.
func (f *Fleet) orphanedReservations(ctx context.Context, mc cluster.ManagementCluster,
	haveWorks map[cluster.ID]bool) (list []api.Orphan, err error) {
	q := store.Query{Kind: KindPlacement, Where: store.Fragment{SQL: "d.status->>'state' = $1",
		Args: []any{string(api.Orphaned)}}, Limit: maxOrphansShown}
	page, err := f.store.List(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("listing orphaned placements: %w", err)
	}
	for _, d := range page.Documents {
		p, err := placementOf(d)
		if err != nil {
			return nil, err
		}
		if haveWorks[p.ClusterID] || mc != "" && mc != p.ManagementCluster {
			continue
		}
		o := api.Orphan{ID: string(p.ClusterID), Kind: api.Reservation, ManagementCluster: string(p.ManagementCluster),
			ClusterID: string(p.ClusterID), What: []string{}, Size: p.reserved(), RemovedBy: p.RemovedBy}
		if p.OrphanedTime != nil {
			o.Since = *p.OrphanedTime
		}
		list = append(list, o)
	}
	return list, nil
}

// endOrphan orders the deletion of one work without an owner, or, if id is that of a removed cluster, of all its works.
// It refuses works whose cluster exists, and works of other sources.
func (f *Fleet) endOrphan(ctx context.Context, mc cluster.ManagementCluster, id, reason string) error {
	if f.opts.Works == nil {
		return errNoWorks
	}
	var works []Work
	if w, ok, err := f.opts.Works.Get(ctx, mc, work.ID(id)); err != nil {
		return err
	} else if ok {
		works = []Work{w}
	} else if err := f.opts.Works.Each(ctx, cluster.ID(id), mc, func(batch []Work) error {
		works = append(works, batch...)
		return nil
	}); err != nil {
		return err
	}
	if len(works) == 0 {
		return rest.Errorf(http.StatusNotFound, codeNotFound,
			"there is no orphan %s; atoll mc orphans lists those there are", rest.Shorten(id, 100))
	}
	if works[0].Known {
		if works[0].Cluster == "" {
			return rest.Errorf(http.StatusConflict, codeState,
				"work %s belongs to its source, and not to a cluster; delete it there", id)
		}
		existing, err := f.existingClusters(ctx, works)
		if err != nil {
			return err
		}
		if existing[works[0].Cluster] {
			return rest.Errorf(http.StatusConflict, codeState, "work %s belongs to the cluster %s; delete the cluster",
				id, works[0].Cluster)
		}
	}
	return f.endWorks(ctx, works, reason)
}
