package arm

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/access"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// TestQueriesForClustersReadAnIndex explains the queries of Clusters Service and of the worker among 10,000 clusters:
// none reads documents that it does not return.
func TestQueriesForClustersReadAnIndex(t *testing.T) {
	dsn := pgtest.DSN(t)
	db, err := store.Open(t.Context(), store.Options{DSN: dsn, Migrations: access.Migrations(),
		Kinds: append(access.StoreKinds(), StoreKinds()...)}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{
		`insert into document (kind, id, scope, name, version, generation, spec, status, wire, created_at, updated_at, token)
		select kind, kind || i, 's' || i % 100, 'g/' || i, 1, 1, jsonb_build_object('name', 'Name' || i, 'parent', 'p' || i),
			jsonb_build_object('resource', 'r' || i), '', now(), now(), 1
		from generate_series(1, 10000) i, unnest(array['ArmCluster', 'ArmNodePool', 'ArmExternalAuth']) kind`,
		`update feed set facets = array['resource=r' || substr(id, length('ArmCluster') + 1)] where kind = 'ArmCluster'`,
		`analyze document`, `analyze feed`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		kind          store.Kind
		search, where string
	}{
		{kindCluster, "azure.resource_name='NAME7'", ""},
		{kindCluster, "azure.subscription_id='s7' and azure.resource_group_name='g' and azure.resource_name='name107'", ""},
		{kindCluster, "name='name7'", ""},
		{kindCluster, "", strings.ReplaceAll(clusterByIDSQL, "$1", "'r7'")},
		{kindPool, "", strings.ReplaceAll(childrenSQL, "$1", "'p7'")},
		{kindAuth, "", strings.ReplaceAll(childrenSQL, "$1", "'p7'")},
	} {
		where, args := c.where, []any(nil)
		if c.search != "" {
			filter, err := clusterSearch().Parse(c.search)
			if err != nil {
				t.Fatal(err)
			}
			fragment := store.Fragment(filter.SQL())
			where, args = fragment.SQL, fragment.Args
		}
		rows, err := conn.Query(t.Context(), "explain (analyze, costs off, timing off) select d.id from document d where "+
			"d.kind = '"+string(c.kind)+"' and d.removed_at is null and ("+where+")", args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Rows Removed by Filter: ") ||
			!strings.Contains(plan, "actual rows=1") {
			t.Errorf("%s %s:\n%s", c.kind, c.search+c.where, plan)
		}
	}
}
