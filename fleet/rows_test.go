package fleet

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/fleet"
	"atoll.dev/cluster"
	"atoll.dev/store"
)

// documentsRead returns how many documents f reads in a transaction, by PostgreSQL's count.
func (b *testRegion) documentsRead(f func(context.Context, *store.Tx) error) int {
	b.t.Helper()
	ctx := b.t.Context()
	const counted = `select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
		where relname = 'document'`
	var before, after int
	err := b.fleet.store.Tx(ctx, func(tx *store.Tx) error {
		if err := tx.QueryRow(ctx, counted).Scan(&before); err != nil { // of earlier transactions of the session
			return err
		}
		if err := f(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRow(ctx, counted).Scan(&after)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return after - before
}

// A placement and its release read their own documents, however many placements the region has.
func TestAPlacementReadsNoOtherPlacements(t *testing.T) {
	b := start(t)
	mc := b.mc("own", `{"capacity":{"planes":100}}`, nil)
	const others = 5000
	var placed string
	for _, name := range []string{"one", "two", "three"} {
		placed = b.cluster(name, `{}`)
		b.place(placed)
	}
	next := b.cluster("next", `{}`)
	if err := b.fleet.store.Tx(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(t.Context(), fillSQL, others)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.fleet.store.Read(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "analyze document")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	const most = 20 // the documents of a step, their tombstones, and probes of PostgreSQL's planner
	doc, err := b.fleet.store.Get(t.Context(), kindCluster, next)
	if err != nil {
		t.Fatal(err)
	}
	demand, err := b.fleet.demand(doc)
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]func(context.Context, *store.Tx) error{
		"a placement": func(ctx context.Context, tx *store.Tx) error {
			d, _, err := b.fleet.writeChoice(ctx, tx, cluster.ID(next), demand, choice{id: cluster.ManagementClusterID(mc),
				name: "own"})
			if p, _ := placementOf(d); err == nil && p.State != api.Placed {
				t.Errorf("the cluster is not placed: %s", d.Status)
			}
			return err
		},
		"a release": func(ctx context.Context, tx *store.Tx) error {
			if _, err := lockSum(ctx, tx, cluster.ManagementClusterID(mc)); err != nil {
				return err
			}
			return tx.Remove(ctx, KindPlacement, placementID(cluster.ID(placed)), 0)
		},
	}
	for what, step := range steps {
		if n := b.documentsRead(step); n > most {
			t.Errorf("%s reads %d documents of a region with %d placements", what, n, others)
		}
	}
}
