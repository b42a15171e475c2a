package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/openshift-online/ocm-common/pkg/utils/parser/sql_parser"
	"github.com/yaacov/tree-search-language/pkg/tsl"
	sqlwalk "github.com/yaacov/tree-search-language/pkg/walkers/sql"
)

// theirTables are those of openshift-online/maestro that matter here.
const theirTables = `
create table consumers (id text primary key, created_at timestamptz, updated_at timestamptz, deleted_at timestamptz, name text unique not null, labels jsonb);
create table resources (id text primary key, created_at timestamptz, updated_at timestamptz, deleted_at timestamptz, name text unique, source text,
	consumer_name text references consumers (name) on delete restrict, version bigint not null, type text, payload jsonb, status jsonb);
`

// searcher writes random searches, and random rows for them to find.
type searcher struct{ *rand.Rand }

func (r searcher) pick(from ...string) string { return from[r.IntN(len(from))] }

func (r searcher) value() string { return r.pick("v", "a", "b", "Prod", "x-1", "5") }

func (r searcher) labels() map[string]string {
	m := map[string]string{}
	for range r.IntN(4) {
		m[r.pick("k", "env", "app.example.com/name")] = r.value()
	}
	return m
}

// resource is a row as the original stores it.
func (r searcher) resource(n int) []any {
	id, consumer, source := fmt.Sprintf("diff-%03d", n), r.pick("diff-1", "diff-2", "diff-3"), r.pick("S", "T", "it's")
	version := 1 + r.IntN(5)
	payload := map[string]any{
		"id": id, "source": source, "specversion": "1.0",
		"type": "io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request",
		"time": "2024-01-01T00:00:00Z", "datacontenttype": "application/json", "clustername": consumer,
		"resourceid": id, "resourceversion": version,
		"data": map[string]any{"manifests": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": r.value()[:1] + "-cm", "namespace": "default"}}}},
	}
	if r.IntN(5) > 0 {
		payload["metadata"] = map[string]any{"name": "work-" + strings.ToLower(r.value()), "namespace": consumer,
			"labels": r.labels()}
	}
	text, _ := json.Marshal(payload)
	var deleted any
	if r.IntN(4) == 0 {
		deleted = "2024-03-01T00:00:00Z"
	}
	created := fmt.Sprintf("2024-01-%02dT0%d:00:00Z", 1+r.IntN(5), r.IntN(5))
	return []any{id, created, created, deleted, id, source, consumer, version, "Bundle", string(text)}
}

func (r searcher) quoted(s string, escape string) string {
	return "'" + strings.ReplaceAll(s, "'", escape+"'") + "'"
}

// tree is a condition in TSL, limited to the version that the original links.
func (r searcher) tree(depth int) string {
	if depth > 0 {
		switch r.IntN(4) {
		case 0:
			return "not (" + r.tree(depth-1) + ")"
		case 1, 2:
			return r.tree(depth-1) + r.pick(" and ", " or ", " AND ") + "(" + r.tree(depth-1) + ")"
		}
	}
	not := r.pick("", "not ")
	text := r.pick("source", "consumer_name", "id", "resources.name", `"type"`, "type")
	value := r.quoted(r.pick("S", "T", "it's", "diff-1", "diff-2", "diff-003", "Bundle"), "'")
	when := r.quoted(r.pick("2024-01-02", "2024-01-03T02:00:00Z", "2024-01-03T04:00:00+02:00"), "'")
	number := r.pick("1", "2", "3", "-1", "4")
	switch r.IntN(10) {
	case 0, 1, 2:
		return text + r.pick(" = ", "=", " != ", " <> ", " < ", " <= ", " > ", " >= ") + value
	case 3:
		return "version " + r.pick("=", "!=", "<", "<=", ">", ">=") + " " + number
	case 4:
		return text + " " + not + r.pick("like ", "ilike ", "LIKE ") + r.quoted(r.pick("diff-%", "%T%", "s", "%'%",
			"_iff-00_", "bundle"), "'")
	case 5:
		return text + " " + not + "in (" + value + ", " + r.quoted("S", "'") + ")"
	case 6:
		return r.pick("deleted_at", "source", "created_at") + " is " + not + "null"
	case 7:
		return "version " + not + "between " + number + " and " + r.pick("3", "5")
	case 8:
		return r.pick("created_at", "updated_at", "deleted_at") + " " + r.pick("<", "<=", ">", ">=", "=") + " " + when
	}
	return r.pick("(version + 1)", "version * 2", "(version - 1) * 2", "version / 2", "version % 2",
		"(version + version) / 3") + " " + r.pick("=", ">", "<=", "!=") + " " + number
}

// paths is a condition in the language with JSON paths.
func (r searcher) paths(depth int) string {
	if depth > 0 && r.IntN(3) > 0 {
		return r.paths(depth-1) + r.pick(" and ", " or ", " AND ") + r.pick("(", "( ") + r.paths(depth-1) + ")"
	}
	label := r.pick("payload->'metadata'->'labels'->>'k'", "payload -> 'metadata' -> 'labels' ->> 'env'",
		"payload->'metadata'->'labels'->>'app.example.com/name'", "payload->'metadata'->>'name'",
		"resources.payload->>'source'")
	value := r.quoted(r.pick(r.value(), "it's", "work-v"), `\`)
	switch r.IntN(9) {
	case 0:
		return label + r.pick("=", "<>", " = ", " <> ") + value
	case 1:
		return label + r.pick("in(", " in (", " not in (") + value + r.pick(",", " , ") + r.quoted(r.value(), `\`) + ")"
	case 2:
		return label + "<>null"
	case 3:
		return label + r.pick(" like ", " ilike ") + r.quoted(r.pick("%-1", "p%", "_", "work-%"), `\`)
	case 4:
		document, _ := json.Marshal(r.labels())
		return "payload->'metadata'->'labels'@>" + r.quoted(string(document), `\`)
	case 5:
		return `payload->'data'->'manifests' @> '[{"metadata":{"name":"` + r.value()[:1] + `-cm"}}]'`
	case 6:
		return r.pick("version>=", "version = ", "VERSION<") + r.pick("2", "3", "'4'")
	case 7:
		return r.pick("source=", "consumer_name<>", "source in(") + value
	}
	return r.pick("source", "consumer_name") + r.pick(" = ", "<>", " like ") + r.pick("S", "T", "diff-1", "'diff-2'",
		"'%-3'")
}

// theirSQL returns the original's SQL for a search.
func theirSQL(text string) (string, []any, error) {
	if strings.Contains(text, "->>") || strings.Contains(text, "@>") {
		sql, args, err := sql_parser.NewSQLParser(sql_parser.WithMaximumComplexity(10)).Parse(text)
		list, _ := args.([]any)
		return sql, list, err
	}
	tree, err := tsl.ParseTSL(text)
	if err != nil {
		return "", nil, err
	}
	filter, err := sqlwalk.Walk(tree)
	if err != nil {
		return "", nil, err
	}
	return filter.ToSql()
}

// TestSearchesFindWhatTheOriginalFinds fills a database of the original's form, imports it, and
// compares the results of our server's REST with those of the original's own parsers and SQL on its
// tables.
func TestSearchesFindWhatTheOriginalFinds(t *testing.T) {
	w := sharedWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	admin, err := pgx.Connect(ctx, w.dsn("postgres", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	if _, err := admin.Exec(ctx, "create database theirs owner maestro"); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, w.dsn("maestro", "theirs"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	r := searcher{rand.New(rand.NewPCG(3, 14))}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	exec(theirTables)
	exec(
		`insert into consumers (id, name, created_at, updated_at) select 'id-' || n, 'diff-' || n, now(), ` +
			`now() from generate_series(1, 3) n`)
	const count = 80
	for n := range count {
		exec(`insert into resources values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'null')`, r.resource(n)...)
	}
	out, err := runAtoll("maestro", "import", "--from", w.dsn("maestro", "theirs"), "--dsn",
		w.dsn("maestro", "interop"), "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Bundles struct{ Imported, Refused int }
	}
	if err := json.Unmarshal(out, &report); err != nil || report.Bundles.Imported != count {
		t.Fatalf("%v: %s", err, out)
	}

	compared, found := 0, 0
	for n := range 800 {
		text := r.tree(2)
		if n%2 == 0 {
			if text = r.paths(2); !strings.Contains(text, "->>") && !strings.Contains(text, "@>") {
				continue
			}
		}
		sql, args, err := theirSQL(text)
		if err != nil {
			continue // the generator says what only we understand
		}
		for i := range args {
			sql = strings.Replace(sql, "?", fmt.Sprintf("$%d", i+1), 1)
		}
		rows, err := conn.Query(ctx, "select id from resources where "+sql+" order by id",
			append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		var want []string
		if err == nil {
			want, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			continue // the original answers with 500
		}
		got := idsOf(t, w.mosquitto, text)
		if !slices.Equal(got, want) {
			t.Errorf("%s\n%s %q\nthe original finds %v\nwe find            %v", text, sql, args, want, got)
		}
		compared++
		if len(want) > 0 && len(want) < count {
			found++
		}
	}
	if compared < 500 || found < compared/3 {
		t.Errorf("%d searches were compared, %d of which find some", compared, found)
	}
	t.Logf("%d searches compared, %d find some of %d bundles", compared, found, count)
}

// runAtoll runs a command that knows no region.
func runAtoll(args ...string) ([]byte, error) {
	out, err := exec.Command(programPath("ATOLL_BIN", "atoll"), args...).Output()
	if e, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("atoll %s: %w: %s", strings.Join(args, " "), err, e.Stderr)
	}
	return out, err
}

// idsOf searches the bundles of this test.
func idsOf(t *testing.T, s *server, text string) []string {
	t.Helper()
	var list struct{ Items []struct{ ID string } }
	s.callREST(t, "GET", "/v1/resource-bundles?size=-1&orderBy=id&fields=id&search="+url.QueryEscape(text), "",
		http.StatusOK, &list)
	var ids []string
	for _, b := range list.Items {
		if strings.HasPrefix(b.ID, "diff-") {
			ids = append(ids, b.ID)
		}
	}
	return ids
}
