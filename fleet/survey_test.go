package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"atoll.dev/cluster"
	"atoll.dev/store"
)

// fillSQL stores placements of clusters, every 500th of which does not exist, on three management clusters; every
// tenth placement waits.
const fillSQL = `insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
	select kind, case kind when 'Cluster' then c.id else 'placement-' || c.id end, '', '', 1, 1,
		jsonb_build_object('cluster_id', c.id, 'demand', '{"amounts": {"planes": 1}}'::jsonb),
		case when n % 10 = 0 then '{"state": "Waiting"}'::jsonb
			else jsonb_build_object('state', 'Placed', 'management_cluster_id', 'mc-' || n % 3) end, '{}', now(), now(), 0
	from generate_series(1, $1) n, lateral (select 'c-' || lpad(n::text, 6, '0') as id) c, unnest(array['Cluster', 'Placement']) kind
	where kind = 'Placement' or n % 500 <> 0`

// A survey reads all placements in pages, each by the primary key, however many there are.
func TestASurveyReadsPagesByTheKey(t *testing.T) {
	b := start(t)
	const placements = 2*surveyPage + 500
	if err := b.fleet.store.Tx(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(t.Context(), fillSQL, placements)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var plan string
	if err := b.fleet.store.Read(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "analyze document"); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, "explain "+surveySQL, pgx.QueryExecModeExec, "placement-c-000100", 100)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plan, "Seq Scan on document") || strings.Contains(plan, "Bitmap") {
		t.Errorf("the statement of a page reads more than the page:\n%s", plan)
	}
	found, err := b.fleet.survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ownerless []cluster.ID
	want := map[cluster.ManagementClusterID]sum{}
	for n := 1; n <= placements; n++ {
		if n%500 == 0 {
			ownerless = append(ownerless, cluster.ID("c-"+padded(n)))
		}
		if mc := cluster.ManagementClusterID("mc-" + string(rune('0'+n%3))); n%10 != 0 {
			want[mc] = sum{want[mc].placements + 1, plus(want[mc].reserved, Amounts{"planes": 1}, 1)}
		}
	}
	if diff := cmp.Diff(ownerless, found.ownerless); diff != "" {
		t.Errorf("ownerless (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, found.sums, cmp.AllowUnexported(sum{})); diff != "" {
		t.Errorf("sums (-want +got):\n%s", diff)
	}
}

func padded(n int) string { return fmt.Sprintf("%06d", n) }

// A placement whose amounts cannot be decoded prevents the repair of no other management cluster's sum, and its own sum
// is not replaced.
func TestADamagedPlacementPreventsNoOtherRepair(t *testing.T) {
	b := start(t)
	err := b.fleet.store.Tx(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(t.Context(), fillSQL, 30)
		if err == nil {
			_, err = tx.Exec(t.Context(), `update document set spec = jsonb_set(spec, '{demand,amounts}', '{"planes": "one"}')
				where kind = 'Placement' and id = 'placement-c-000004'`)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.fleet.compareSums(t.Context()); err == nil || !strings.Contains(err.Error(), "mc-1") ||
		strings.Contains(err.Error(), "mc-2") {
		t.Errorf("the error does not name the management cluster of the damaged placement: %v", err)
	}
	var sums map[cluster.ManagementClusterID]sum
	if err := b.fleet.store.Tx(t.Context(), func(tx *store.Tx) (err error) {
		sums, err = readSums(t.Context(), tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := map[cluster.ManagementClusterID]sum{"mc-0": {9, Amounts{"planes": 9}}, "mc-2": {9, Amounts{"planes": 9}}}
	if diff := cmp.Diff(want, sums, cmp.AllowUnexported(sum{})); diff != "" {
		t.Errorf("the sums (-want +got):\n%s", diff)
	}
}
