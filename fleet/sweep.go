package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// ownerless selects placements whose cluster does not exist any more and that are not Orphaned yet.
const ownerless = `d.status->>'state' <> 'Orphaned'
	and not exists (select 1 from document c where c.kind = 'Cluster' and c.id = d.spec->>'cluster_id' and c.removed_at is null)`

// compare finds what the feed should have shown: placements of removed clusters, and sums that differ from
// the placements. It reads all placements, so it runs when the feed begins anew and once an hour.
func (f *Fleet) compare(ctx context.Context) error {
	for after := ""; ; {
		page, err := f.store.List(ctx, store.Query{Kind: KindPlacement, Where: store.Fragment{SQL: ownerless},
			Limit: 100, After: after})
		if err != nil {
			return fmt.Errorf("looking for placements without a cluster: %w", err)
		}
		for _, d := range page.Documents {
			p, err := placementOf(d)
			if err == nil {
				err = f.orphan(ctx, p.ClusterID)
			}
			if err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	_, err := f.compareSums(ctx)
	return err
}

// orphan handles the placement of a removed cluster. It removes a waiting placement. One with a reservation
// becomes Orphaned and keeps the reservation until its management cluster has nothing of the cluster left:
// an orderly deletion removes the placement before the cluster, so this deletion was forced.
func (f *Fleet) orphan(ctx context.Context, cluster string) error {
	var d store.Document
	_, by, err := f.removal(ctx, cluster)
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
		if _, err := tx.Get(ctx, kindCluster, cluster); err == nil {
			return errAlive
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
		d, _, err = tx.Update(ctx, KindPlacement, d.ID, 0, func(d *store.Document) error { return p.into(d) })
		return err
	})
	switch {
	case errors.Is(err, errAlive) || errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("noting that cluster %s is gone: %w", cluster, err)
	}
	return nil
}

var errAlive = errors.New("the cluster is there")

// compareSums corrects sums that differ from the placements and returns how many did. One statement reads
// both, in one snapshot: each transaction changes both.
func (f *Fleet) compareSums(ctx context.Context) (mended int, err error) {
	fail := func(err error) (int, error) { return mended, fmt.Errorf("comparing reservations: %w", err) }
	wrong, err := f.wrongSums(ctx)
	if err != nil {
		return fail(err)
	}
	for _, id := range wrong {
		err := f.store.Tx(ctx, func(tx *store.Tx) error {
			if _, err := tx.Exec(
				ctx, `insert into reservation (management_cluster, placements, reserved) values ($1, 0, '{}') on conflict do nothing`, id); err != nil {
				return err
			}
			have, err := lockSum(ctx, tx, id)
			if err != nil {
				return err
			}
			found, err := addUp(ctx, tx, id)
			if err != nil || have.placements == found.placements && maps.Equal(have.reserved, found.reserved) {
				return err
			}
			mended++
			f.log.LogAttrs(ctx, slog.LevelError, "a sum of reservations was wrong", slog.String("management_cluster_id",
				id),
				slog.Any("said", have.reserved), slog.Any("found", found.reserved), slog.Int("placements",
					found.placements))
			return setSum(ctx, tx, id, found)
		})
		if err != nil {
			return fail(err)
		}
	}
	f.metrics.mended.Add(float64(mended))
	return mended, nil
}

// wrongSums selects the management clusters whose sum differs from the placements in their number or in any
// amount.
func (f *Fleet) wrongSums(ctx context.Context) (ids []string, err error) {
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		rows, err := tx.Query(ctx, `
			with placed as (
				select status->>'management_cluster_id' as mc, spec->'demand'->'amounts' as amounts, count(*) as n from document
				where kind = $1 and removed_at is null and status->>'state' <> $2 group by 1, 2),
			found as (
				select mc, sum(n) as n, (select coalesce(jsonb_object_agg(key, total), '{}') from (
					select a.key, sum(a.value::bigint * p.n) as total from placed p, jsonb_each_text(p.amounts) a
					where p.mc = g.mc group by a.key having sum(a.value::bigint * p.n) <> 0) t) as reserved
				from placed g group by mc)
			select coalesce(found.mc, r.management_cluster) from found full join reservation r on r.management_cluster = found.mc
			where found.n is distinct from r.placements or found.reserved is distinct from r.reserved`, string(KindPlacement), string(api.Waiting))
		if err != nil {
			return err
		}
		defer rows.Close()
		ids = nil
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return rows.Err()
	})
	return ids, err
}

// addUp computes the sum of the placements on one management cluster.
func addUp(ctx context.Context, tx *store.Tx, id string) (s sum, err error) {
	s.reserved = Amounts{}
	fail := func(err error) (sum, error) { return s, fmt.Errorf("adding up placements: %w", err) }
	rows, err := tx.Query(ctx, `select spec->'demand'->'amounts', count(*) from document
		where kind = $1 and removed_at is null and status->>'state' <> $2 and status->>'management_cluster_id' = $3 group by 1`,
		string(KindPlacement), string(api.Waiting), id)
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
