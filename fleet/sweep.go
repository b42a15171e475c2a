package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	api "atoll.dev/api/fleet"
	"atoll.dev/store"
)

// orphans are placements whose cluster is not there any more.
const orphans = `not exists (select 1 from document c where c.kind = 'Cluster' and c.id = d.spec->>'cluster_id' and c.removed_at is null)`

// sweep finds what events should have ended, and was not: placements of
// clusters that are gone, and sums that are not those of the placements.
func (f *Fleet) sweep(ctx context.Context) error {
	for after := ""; ; {
		page, err := f.store.List(ctx, store.Query{Kind: KindPlacement, Where: store.Fragment{SQL: orphans}, Limit: 100, After: after})
		if err != nil {
			return fmt.Errorf("looking for orphaned placements: %w", err)
		}
		for _, d := range page.Documents {
			p, err := placementOf(d)
			if err == nil {
				err = f.releaseOrphan(ctx, p.ClusterID)
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

// releaseOrphan releases the placement of a cluster that is gone.
func (f *Fleet) releaseOrphan(ctx context.Context, cluster string) error {
	released, err := f.release(ctx, cluster, func(c *store.Document, _ placement) error {
		if c != nil {
			return errAlive
		}
		return nil
	})
	switch {
	case errors.Is(err, errAlive):
		return nil
	case err != nil:
		return fmt.Errorf("releasing the placement of cluster %s, which is gone: %w", cluster, err)
	case released:
		f.metrics.decided(outcomeOrphan)
	}
	return nil
}

var errAlive = errors.New("the cluster is there")

// compareSums compares what is said to be reserved with the placements, mends
// it, and returns how many were wrong.
func (f *Fleet) compareSums(ctx context.Context) (mended int, err error) {
	end, err := f.beginDecision(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	err = f.store.Tx(ctx, func(tx *store.Tx) error {
		mended = 0
		if err := lockDecisions(ctx, tx); err != nil {
			return err
		}
		said, err := readReservations(ctx, tx)
		if err != nil {
			return err
		}
		found, err := addUp(ctx, tx)
		if err != nil {
			return err
		}
		for id := range said {
			if _, ok := found[id]; !ok {
				found[id] = sum{reserved: Amounts{}}
			}
		}
		for id, s := range found {
			have := said[id]
			if have.placements == s.placements && maps.Equal(have.reserved, s.reserved) {
				continue
			}
			mended++
			f.log.LogAttrs(ctx, slog.LevelError, "a sum of reservations was wrong", slog.String("management_cluster_id", id),
				slog.Any("said", have.reserved), slog.Any("found", s.reserved), slog.Int("placements", s.placements))
			if err := setReservation(ctx, tx, id, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("comparing reservations: %w", err)
	}
	f.metrics.mended.Add(float64(mended))
	return mended, nil
}

// addUp adds up what placements reserve, by management cluster.
func addUp(ctx context.Context, tx *store.Tx) (map[string]sum, error) {
	fail := func(err error) (map[string]sum, error) { return nil, fmt.Errorf("adding up placements: %w", err) }
	rows, err := tx.Query(ctx, `select status->>'management_cluster_id', spec->'demand'->'amounts', count(*) from document
		where kind = $1 and removed_at is null and status->>'state' = $2 group by 1, 2`, string(KindPlacement), string(api.Placed))
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	sums := map[string]sum{}
	for rows.Next() {
		var id string
		var amounts Amounts
		var n int
		if err := rows.Scan(&id, &amounts, &n); err != nil {
			return fail(err)
		}
		s := sums[id]
		sums[id] = sum{s.placements + n, plus(s.reserved, amounts, int64(n))}
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return sums, nil
}
