package search

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"atoll.dev/internal/pgtest"
)

// row is a row of the test's table, in which every field may be null.
type row struct {
	ID        int64
	Name      *string
	Version   *int64
	CreatedAt *time.Time
	Ready     *bool
	Payload   json.RawMessage
	Props     json.RawMessage
}

var rows = Schema{Table: "t", Fields: map[string]Field{
	"name":       {SQL: "d.name", Type: Text},
	"version":    {SQL: "d.version", Type: Int},
	"created_at": {SQL: "d.created_at", Type: Time},
	"ready":      {SQL: "d.ready", Type: Bool},
	"payload":    {SQL: "d.payload", Type: JSON, StringMaps: [][]string{{"labels"}}},
	"props":      {SQL: "d.props", Type: JSON, Dotted: true},
}}

func (r row) field(name string) any {
	switch name {
	case "name":
		if r.Name != nil {
			return *r.Name
		}
	case "version":
		if r.Version != nil {
			return *r.Version
		}
	case "created_at":
		if r.CreatedAt != nil {
			return *r.CreatedAt
		}
	case "ready":
		if r.Ready != nil {
			return *r.Ready
		}
	case "payload":
		if r.Payload != nil {
			return r.Payload
		}
	case "props":
		if r.Props != nil {
			return r.Props
		}
	}
	return nil
}

// words are few, so that searches find something.
var words = []string{"", "a", "b", "A", "ab", "aB%", "a_b", "it's", "Ä", "ä", "5", "1.50", "null", `x\y`, "true", "日本",
	"a, b", `<"}`}

func randomRows(r *rand.Rand, n int) []row {
	word := func() string { return words[r.IntN(len(words))] }
	var value func(depth int) any
	value = func(depth int) any {
		switch r.IntN(8 - depth) {
		case 0:
			return nil
		case 1:
			return r.IntN(2) == 0
		case 2:
			return []json.Number{"5", "-1", "1.50", "1e3", "0", "12345678901"}[r.IntN(6)]
		case 3, 4:
			return word()
		case 5:
			list := []any{}
			for range r.IntN(3) {
				list = append(list, value(depth+1))
			}
			return list
		}
		object := map[string]any{}
		for range r.IntN(4) {
			object[[]string{"a", "b", "c", "aa"}[r.IntN(4)]] = value(depth + 1)
		}
		return object
	}
	var out []row
	for i := range n {
		w := row{ID: int64(i)}
		if s := word(); r.IntN(6) > 0 {
			w.Name = &s
		}
		if v := int64(r.IntN(12) - 4); r.IntN(6) > 0 {
			w.Version = &v
		}
		if at := time.Date(2024, 1, 1+r.IntN(4), r.IntN(2), 0, 0, r.IntN(2)*1000, time.UTC); r.IntN(4) > 0 {
			w.CreatedAt = &at
		}
		if b := r.IntN(2) == 0; r.IntN(4) > 0 {
			w.Ready = &b
		}
		if r.IntN(8) > 0 {
			labels := map[string]string{}
			for range r.IntN(4) {
				labels[[]string{"k", "l", "m/n"}[r.IntN(3)]] = word()
			}
			payload := map[string]any{"data": value(0)}
			if r.IntN(4) > 0 {
				payload["labels"] = labels
			}
			w.Payload, _ = json.Marshal(payload)
		}
		if r.IntN(8) > 0 {
			w.Props, _ = json.Marshal(map[string]any{"a": value(1), "b": value(1), "n": r.IntN(9)})
		}
		out = append(out, w)
	}
	return out
}

// generator writes random searches.
type generator struct {
	t     *rapid.T
	paths bool
}

func (g generator) pick(from ...string) string { return rapid.SampledFrom(from).Draw(g.t, "") }

func (g generator) quoted(s string) string {
	if g.paths && rapid.Bool().Draw(g.t, "backslash") {
		return "'" + strings.ReplaceAll(s, "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

func (g generator) text() string {
	w := g.pick(words...)
	if g.paths && strings.HasSuffix(w, `\`) {
		w = "a"
	}
	return g.quoted(w)
}
func (g generator) number() string {
	n := g.pick("0", "1", "-2", "5", "2.5", "3", "1e3", "0.001k", "7")
	if g.paths {
		n = g.pick("0", "1", "-2", "5", "2.5", "'3'")
	}
	return n
}
func (g generator) time() string {
	when := g.pick("2024-01-02", "2024-01-03T01:00:00Z", "2024-01-03T03:00:00.000001+02:00")
	if g.paths || rapid.Bool().Draw(g.t, "quoted") {
		return g.quoted(when)
	}
	return when
}

func (g generator) op() string { return g.pick("=", "<>", "<", "<=", ">", ">=") }
func (g generator) list(of func() string) string {
	n := rapid.IntRange(0, 3).Draw(g.t, "n")
	if g.paths {
		n++
	}
	items := make([]string, n)
	for i := range items {
		items[i] = of()
	}
	return "(" + strings.Join(items, g.pick(",", " , ")) + ")"
}

func (g generator) sum(depth int) string {
	if depth == 0 || rapid.IntRange(0, 2).Draw(g.t, "leaf") == 0 {
		return g.pick("version", "version", g.pick("1", "2", "3", "0"), "props.n")
	}
	l, r := g.sum(depth-1), g.sum(depth-1)
	op := g.pick("+", "-", "*", "/")
	return "(" + l + " " + op + " " + r + ")"
}

func (g generator) textField() string {
	if g.paths {
		return g.pick("name", "NAME", "payload->'labels'->>'k'", "payload -> 'labels' ->> 'm/n'",
			"payload->'data'->>'a'", "payload->'data'->'b'->>'a'", "props->>'a'")
	}
	return g.pick("name", "t.name", "`name`", "props.a", "props.b", "props.a.b")
}

func (g generator) pattern() string {
	return g.quoted(g.pick("a%", "%b", "_", "%", "", "A_%", `x\\y`, `a\_b`, "%b%"))
}

func (g generator) leaf() string {
	not := g.pick("", "not ")
	kinds := []func() string{
		func() string { return g.textField() + " " + g.op() + " " + g.text() },
		func() string { return g.textField() + g.pick("=", "<>") + g.text() },
		func() string { return g.textField() + " " + not + "in" + g.list(g.text) },
		func() string { return "version " + g.op() + " " + g.number() },
		func() string { return "version " + not + "in " + g.list(g.number) },
		func() string { return "created_at " + g.op() + " " + g.time() },
		func() string { return "ready " + g.pick("=", "<>") + " " + g.pick("true", "false") },
	}
	if g.paths {
		kinds = append(kinds,
			func() string { return g.textField() + g.pick(" like", " LIKE ", " ilike") + g.pattern() },
			func() string { return "payload->'labels'->>'k'" + g.pick("<>", "=") + "null" },
			func() string {
				return g.pick("payload", "payload->'data'", "payload->'labels'", "payload->'data'->'a'", "props") +
					"@>" +
					g.quoted(g.pick(`{"k":"a"}`, `{"k":"it's"}`, `{"k":"a, b"}`, `{"k":"日本"}`, `{}`, `[]`, `"a"`, `5`,
						`{"a":{}}`, `["a"]`, `[[]]`, `{"a":[5]}`,
						`{"labels":{"k":"a"}}`, `null`, `1000`, `[{"a":null}]`))
			})
	} else {
		kinds = append(kinds,
			func() string { return g.textField() + " " + not + g.pick("like ", "ilike ") + g.pattern() },
			func() string {
				return "name " + g.pick("~=", "~!") + " " + g.quoted(g.pick("^a", "b$", "a|b", "[ab]+", "^.$", "a.*b",
					"(a|A)b?", `\.`, "[^a]"))
			},
			func() string {
				return g.pick("name", "version", "created_at", "ready", "payload", "props", "props.a", "props.a.b") +
					" is " + not + "null"
			},
			func() string { return "version " + not + "between " + g.number() + " and " + g.number() },
			func() string { return "created_at " + not + "between " + g.time() + " and " + g.time() },
			func() string { return g.sum(2) + " " + g.op() + " " + g.pick(g.sum(1), "version", "3") },
			func() string { return "version % " + g.pick("2", "3", "0", "version") + " = " + g.pick("0", "1", "-1") },
			func() string { return "props." + g.pick("a", "b", "n") + " " + g.op() + " " + g.number() },
			func() string { return "props." + g.pick("a", "b") + " = " + g.pick("true", "false") },
			func() string { return "props." + g.pick("a", "b") + " " + not + "in " + g.list(g.number) },
			func() string { return "name " + g.op() + " props.a" },
			func() string { return "props.a " + g.op() + " props.b" },
			func() string { return g.pick("version", "5", "2.5") + " " + g.op() + " props.n" },
			func() string {
				return "payload " + g.pick("=", "<>") + " " +
					g.quoted(g.pick(`{"data":null}`, `{"data":"a","labels":{}}`, `null`, `{"data": 1000}`))
			})
	}
	return rapid.SampledFrom(kinds).Draw(g.t, "kind")()
}

func (g generator) condition(depth int) string {
	if depth == 0 {
		return g.leaf()
	}
	switch rapid.IntRange(0, 3).Draw(g.t, "shape") {
	case 0:
		return g.leaf()
	case 1:
		return "not (" + g.condition(depth-1) + ")"
	}
	n := rapid.IntRange(2, 3).Draw(g.t, "terms")
	terms := make([]string, n)
	for i := range terms {
		if terms[i] = g.condition(depth - 1); rapid.Bool().Draw(g.t, "parentheses") {
			terms[i] = "(" + terms[i] + ")"
		}
	}
	return strings.Join(terms, g.pick(" and ", " or ", " AND "))
}

// TestPostgreSQLAgreesWithMatch compares, on random rows and searches, the
// rows that the SQL finds with those that Match accepts.
func TestPostgreSQLAgreesWithMatch(t *testing.T) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(
		ctx, `create table t (id bigint, name text, version bigint, created_at timestamptz, ready boolean, `+
			`payload jsonb, props jsonb)`); err != nil {
		t.Fatal(err)
	}
	all := randomRows(rand.New(rand.NewPCG(1, 2)), 150)
	for _, r := range all {
		if _, err := conn.Exec(ctx, `insert into t values ($1, $2, $3, $4, $5, $6, $7)`, r.ID, r.Name, r.Version,
			r.CreatedAt, r.Ready, r.Payload, r.Props); err != nil {
			t.Fatal(err)
		}
	}
	accepted, found := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		g := generator{t: rt, paths: rapid.Bool().Draw(rt, "paths")}
		text := g.condition(2)
		if g.paths && !strings.Contains(text, "->>") && !strings.Contains(text, "@>") {
			text += " or payload->>'none'='x'"
		}
		q, err := Parse(text, Limits{})
		if err != nil {
			rt.Fatalf("%s: %v", text, err)
		}
		schema := Schema{Table: rows.Table, Fields: maps.Clone(rows.Fields)}
		payload := schema.Fields["payload"]
		payload.Pairs = rapid.Bool().Draw(rt, "pairs")
		schema.Fields["payload"] = payload
		f, err := q.Bind(schema)
		if err != nil {
			if strings.Contains(err.Error(), "two values") || strings.Contains(err.Error(), "whole numbers") {
				rt.Skip() // a sum of numbers alone
			}
			rt.Fatalf("%s: %v", text, err)
		}
		var want []int64
		for _, r := range all {
			if f.Match(r.field) {
				want = append(want, r.ID)
			}
		}
		sql := f.SQL()
		res, err := conn.Query(ctx, "select id from t d where "+sql.SQL+" order by id",
			append([]any{pgx.QueryExecModeCacheDescribe}, sql.Args...)...)
		if err != nil {
			rt.Fatalf("%s\n%s: %v", text, sql.SQL, err)
		}
		got, err := pgx.CollectRows(res, pgx.RowTo[int64])
		if err != nil {
			rt.Fatalf("%s\n%s: %v", text, sql.SQL, err)
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("%s\n%s %v\nPostgreSQL finds %v\nMatch accepts    %v\n%s", text, sql.SQL, sql.Args, got, want,
				describe(all, got, want))
		}
		accepted++
		if len(got) > 0 && len(got) < len(all) {
			found++
		}
	})
	if found*5 < accepted {
		t.Errorf("%d of %d searches find some of the rows: the others prove little", found, accepted)
	}
}

func describe(all []row, got, want []int64) string {
	for _, r := range all {
		if slices.Contains(got, r.ID) != slices.Contains(want, r.ID) {
			text, _ := json.Marshal(r)
			return fmt.Sprintf("first: %s", text)
		}
	}
	return ""
}
