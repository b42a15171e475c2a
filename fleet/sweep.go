package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// compare repairs differences that a lost change of the feed leaves: it marks placements of removed clusters as
// Orphaned, and corrects sums that differ from the placements. It reads all placements, so it runs only when follow
// subscribes to the feed again, and once an hour. A damaged placement or sum prevents no other repair: compare goes on
// and returns the errors at the end. Without the database it ends at once.
func (f *Fleet) compare(ctx context.Context) error {
	found, err := f.survey(ctx)
	if err != nil {
		return fmt.Errorf("reading placements without a cluster: %w", err)
	}
	var failed []error
	for _, cluster := range found.ownerless {
		err := f.markOrphaned(ctx, cluster)
		if store.IsTransient(err) {
			return err
		}
		failed = append(failed, err)
	}
	_, err = f.correctSums(ctx, found.sums)
	return errors.Join(append(failed, err)...)
}

// markOrphaned handles the placement of a removed cluster. There are four outcomes, none of them an error: the cluster
// or its placement does not exist as expected, and nothing changes; it removes a waiting placement; an Orphaned one
// stays; any other becomes Orphaned and keeps its reservation until its management cluster has no work of the cluster.
// An orderly deletion removes the placement before the cluster, so this deletion was forced.
func (f *Fleet) markOrphaned(ctx context.Context, cluster cluster.ID) error {
	var d store.Document
	_, by, err := f.removalRecord(ctx, cluster)
	if err != nil {
		return err
	}
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		var err error
		d, err = tx.GetForUpdate(ctx, KindPlacement, placementID(cluster))
		if err != nil {
			return err
		}
		p, err := placementOf(d)
		if err != nil {
			return err
		}
		if _, err := tx.Get(ctx, kindCluster, string(cluster)); err == nil {
			return errClusterExists
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if p.State == api.Waiting {
			return tx.Remove(ctx, KindPlacement, d.ID, 0)
		}
		if p.State == api.Orphaned {
			return nil
		}
		now := time.Now().UTC().Truncate(time.Microsecond)
		p.State, p.OrphanedTime, p.RemovedBy = api.Orphaned, &now, by
		d, _, err = tx.Update(ctx, KindPlacement, d.ID, 0, func(d *store.Document) error { return p.encodeInto(d) })
		return err
	})
	switch {
	case errors.Is(err, errClusterExists) || errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("marking the placement of removed cluster %s: %w", cluster, err)
	}
	return nil
}

var errClusterExists = errors.New("the cluster exists")

// compareSums corrects sums that differ from the placements and returns how many did.
func (f *Fleet) compareSums(ctx context.Context) (corrected int, err error) {
	found, err := f.survey(ctx)
	if err != nil {
		return 0, fmt.Errorf("comparing reservations: %w", err)
	}
	return f.correctSums(ctx, found.sums)
}

// correctSums corrects sums that differ from those that survey found. While placements change, the pages of a survey
// fit no single moment, so a sum is wrong only if it differs from a second survey, too. For each of these correctSums
// adds up the placements again, in the transaction that locks the sum: each transaction changes both.
func (f *Fleet) correctSums(
	ctx context.Context,
	found map[cluster.ManagementClusterID]sum,
) (corrected int, err error) {
	fail := func(err error) (int, error) { return corrected, fmt.Errorf("comparing reservations: %w", err) }
	wrong, err := f.wrongSums(ctx, found)
	if err != nil {
		return fail(err)
	}
	if len(wrong) > 0 {
		again, err := f.survey(ctx)
		if err != nil {
			return fail(err)
		}
		still, err := f.wrongSums(ctx, again.sums)
		if err != nil {
			return fail(err)
		}
		wrong = slices.DeleteFunc(wrong, func(id cluster.ManagementClusterID) bool { return !slices.Contains(still, id) })
	}
	var failed []error
	for _, id := range wrong {
		err := f.store.Tx(ctx, func(tx *store.Tx) error {
			if _, err := tx.Exec(
				ctx,
				`insert into reservation (management_cluster, placements, reserved) values ($1, 0, '{}') on conflict do nothing`,
				id,
			); err != nil {
				return err
			}
			have, err := lockSum(ctx, tx, id)
			if err != nil {
				return err
			}
			found, err := sumPlacements(ctx, tx, id)
			if err != nil {
				return err
			}
			if have.placements == found.placements && maps.Equal(have.reserved, found.reserved) {
				if have.placements == 0 {
					return setSum(ctx, tx, id, have) // it removes the row that was inserted above
				}
				return nil
			}
			corrected++
			f.log.LogAttrs(ctx, slog.LevelError, "fleet corrected a sum of reservations", slog.String("management_cluster_id",
				string(id)),
				slog.Any("stored", have.reserved), slog.Any("found", found.reserved), slog.Int("placements",
					found.placements))
			return setSum(ctx, tx, id, found)
		})
		if store.IsTransient(err) {
			return fail(err)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("management cluster %s: %w", id, err))
		}
	}
	f.metrics.corrected.Add(float64(corrected))
	if err := errors.Join(failed...); err != nil {
		return fail(err)
	}
	return corrected, nil
}

// wrongSums returns the management clusters whose stored sum differs from the one that survey found.
func (f *Fleet) wrongSums(ctx context.Context,
	found map[cluster.ManagementClusterID]sum) (ids []cluster.ManagementClusterID, err error) {
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		stored, err := readSums(ctx, tx)
		if err != nil {
			return err
		}
		ids = nil
		for id, have := range stored {
			if want := found[id]; have.placements != want.placements || !maps.Equal(have.reserved, want.reserved) {
				ids = append(ids, id)
			}
		}
		for id := range found {
			if _, ok := stored[id]; !ok {
				ids = append(ids, id)
			}
		}
		return nil
	})
	return ids, err
}

// sumPlacementsSQL reads all placements. An index on the status would avoid that, but it would prevent the in-place
// updates of every document's status (decision 049), and this statement runs only when a sum is wrong.
const sumPlacementsSQL = `select spec->'demand'->'amounts', count(*) from document
	where kind = 'Placement' and removed_at is null and status->>'state' <> $1
	and $2 in (status->>'management_cluster_id', status->'move'->>'reserved_on')
	group by 1`

// sumPlacements returns the sum of the placements on one management cluster.
func sumPlacements(ctx context.Context, tx *store.Tx, id cluster.ManagementClusterID) (s sum, err error) {
	s.reserved = Amounts{}
	fail := func(err error) (sum, error) { return s, fmt.Errorf("adding up placements: %w", err) }
	rows, err := tx.Query(ctx, sumPlacementsSQL, string(api.Waiting), id)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	for rows.Next() {
		var amounts Amounts
		var n int
		if err := rows.Scan(&amounts, &n); err != nil {
			return fail(err)
		}
		s = sum{s.placements + n, plus(s.reserved, amounts, int64(n))}
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return s, nil
}
