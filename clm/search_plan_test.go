package clm

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// Searches by conditions, by indexed members of the spec and by labels read their matches and not
// the whole table.
func TestSearchesReadAnIndex(t *testing.T) {
	const resources, each = 20_000, 1_000
	const want = resources / each
	dsn, ctx := pgtest.DSN(t), t.Context()
	a, _ := startAs(t, dsn, strings.Replace(testEntities, "spec_schema_name: ClusterSpec,",
		"spec_schema_name: ClusterSpec, indexed: [plan, zone.name],", 1), func(*Options) {})
	a.do("POST", "/clusters", `{"kind":"Cluster","name":"first","labels":{"n":"none"},"spec":{"plan":"x",`+
		`"zone":{"name":"x"}}}`).
		want(201)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `insert into document (kind, id, scope, name, version, generation, spec, status, head, wire, created_at, updated_at, token, facets)
		select kind, 'c' || n, scope, 'c' || n, 1, 1, spec || jsonb_build_object('labels', jsonb_build_object('n', 'n' || n % $2::int),
			'spec', jsonb_build_object('plan', 'p' || n % $2::int, 'zone', jsonb_build_object('name', 'z' || n % $2::int))),
			jsonb_set(status, '{conditions,0,status}', to_jsonb(case when n % $2::int = 0 then 'True' else 'False' end)), head, wire,
			created_at + n * interval '1 ms', updated_at, n, case when n % $2::int = 0 then array['Reconciled=True'] else facets end
		from document, generate_series(1, $1::int) n where kind = 'Cluster'`,
		resources,
		each,
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "vacuum analyze document, feed"); err != nil {
		t.Fatal(err)
	}
	removed := regexp.MustCompile(`Rows Removed by [^:]*: (\d+)`)
	for _, search := range []string{
		"status.conditions.Reconciled='True'", "spec.plan='p7'", "spec.zone.name='z7'", "labels.n='n7'",
		`labels@>'{"n":"n7"}'`,
		"status.conditions.Reconciled='True' and labels.n='n0'", "spec.plan='p7' and status.conditions.Reconciled='False'",
	} {
		got := a.do("GET", "/clusters?search="+url.QueryEscape(search), "").want(200)
		if got.at("total") != strconv.Itoa(want) {
			t.Errorf("%s finds %s, want %d", search, got.at("total"), want)
		}
		filter, err := a.server.registry.parseSearch(search)
		if err != nil {
			t.Fatal(err)
		}
		fragment := filter.SQL()
		rows, err := conn.Query(ctx, `explain (analyze, costs off, timing off) select d.id from document d
			where d.kind in ('Cluster') and d.removed_at is null and (`+fragment.SQL+
			`) order by d.created_at desc, d.id desc limit 21`,
			append([]any{pgx.QueryExecModeSimpleProtocol}, fragment.Args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan, useless := strings.Join(lines, "\n"), 0
		for _, m := range removed.FindAllStringSubmatch(plan, -1) {
			n, _ := strconv.Atoi(m[1])
			useless += n
		}
		if strings.Contains(plan, "Seq Scan") || useless > want {
			t.Errorf("%s: reads %d rows that it does not find:\n%s", search, useless, plan)
		}
		if strings.Contains(search, "labels") && !strings.Contains(plan, "string_to_array") {
			t.Errorf("%s: reads the labels of each row that the index finds again:\n%s", search, plan)
		}
	}
}

// Searches by facets follow changes of the conditions.
func TestASearchByConditionFollowsReports(t *testing.T) {
	a := start(t)
	id := a.cluster("shop")
	found := func(search, want string) {
		t.Helper()
		if got := a.do("GET", "/clusters?search="+url.QueryEscape(search), "").want(200).at("total"); got != want {
			t.Errorf("%s finds %s, want %s", search, got, want)
		}
	}
	found("status.conditions.Reconciled='False'", "1")
	found("status.conditions.DnsSuccessful='True'", "0")
	for i, value := range []string{"True", "False", "True"} {
		for _, adapter := range []string{"dns", "validation"} {
			a.do("PUT", "/clusters/"+id+"/statuses", fmt.Sprintf(`{"adapter":%q,"observed_generation":1,"conditions":[
				{"type":"Available","status":%q},{"type":"Applied","status":"True"},{"type":"Health","status":"True"}],"data":{"n":%d}}`,
				adapter, value, i)).want(201)
		}
		found("status.conditions.DnsSuccessful='"+value+"' and status.conditions.Reconciled='"+value+"'", "1")
		found("status.conditions.Reconciled='Unknown'", "0")
	}
	a.do("PATCH", "/clusters/"+id, `{"labels":{"a":"b"}}`).want(200)
	found("status.conditions.Reconciled='False' and status.conditions.DnsSuccessful='True'", "1")
}
