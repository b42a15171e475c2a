package search

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var bundles = Schema{Table: "resources", Fields: map[string]Field{
	"id":            {SQL: "d.id", Type: Text},
	"name":          {SQL: "d.name", Type: Text},
	"source":        {SQL: "d.spec->>'source'", Type: Text},
	"consumer_name": {SQL: "d.scope", Type: Text},
	"version":       {SQL: "d.generation", Type: Int},
	"created_at":    {SQL: "d.created_at", Type: Time},
	"deleted_at":    {SQL: "d.deleted_at", Type: Time},
	"ready":         {SQL: "d.ready", Type: Bool},
	"payload":       {SQL: "d.spec", Type: JSON, StringMaps: [][]string{{"metadata", "labels"}}},
	"properties":    {SQL: "d.properties", Type: JSON, Dotted: true},
}}

func bindText(text string) (*Filter, error) {
	q, err := Parse(text, Limits{})
	if err != nil {
		return nil, err
	}
	return q.Bind(bundles)
}

// TestSearchesOfClients has the searches of Maestro's own clients, byte for byte,
// and others of each kind.
func TestSearchesOfClients(t *testing.T) {
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, c := range []struct {
		text string
		sql  string
		args []any
	}{
		{"", "", nil},
		{"  ", "", nil},
		// The language with JSON paths.
		{`source='S' and consumer_name='C' and payload->'metadata'->'labels'@>'{"k":"v"}'`,
			`((d.spec->>'source') = $1::text and (d.scope) = $2::text and ((d.spec)->$3::text->$4::text) @> $5::jsonb)`,
			[]any{"S", "C", "metadata", "labels", `{"k":"v"}`}},
		{`payload->'metadata'->'labels'->>'k'in('a','b')`,
			`(((d.spec)->$1::text->$2::text) @> $3::jsonb or ((d.spec)->$1::text->$2::text) @> $4::jsonb)`,
			[]any{"metadata", "labels", `{"k":"a"}`, `{"k":"b"}`}},
		{`payload->'metadata'->'labels'->>'k'<>'a' and payload->'metadata'->'labels'->>'k'<>'b'`,
			`((d.spec)->$1::text->$2::text->>$3::text) <> all($4::text[])`, []any{"metadata", "labels", "k",
				[]string{"a", "b"}}},
		{`payload->'metadata'->'labels'->>'k'<>'v'`,
			`((d.spec)->$1::text->$2::text->>$3::text) <> $4::text`, []any{"metadata", "labels", "k", "v"}},
		{`payload->'metadata'->'labels'->>'k'<>null`,
			`((d.spec)->$1::text->$2::text->>$3::text) is not null`, []any{"metadata", "labels", "k"}},
		{`payload->'metadata'->'labels'->>'k'='v'`, `(((d.spec)->$1::text->$2::text) @> $3::jsonb)`,
			[]any{"metadata", "labels", `{"k":"v"}`}},
		{`payload->'data'->>'k'='v'`, `((d.spec)->$1::text->>$2::text) = $3::text`, []any{"data", "k", "v"}},
		{`resources.payload -> 'data' -> 'manifests' @> '[{"kind":"Pod"}]'`,
			`((d.spec)->$1::text->$2::text) @> $3::jsonb`, []any{"data", "manifests", `[{"kind":"Pod"}]`}},
		{`name='it\'s' and payload->>'a'LIKE'x%' and payload->>'a'not in(b, 'c')`,
			`((d.name) = $1::text and ((d.spec)->>$2::text) collate "C" like $3::text ` +
				`and ((d.spec)->>$2::text) <> all($4::text[]))`,
			[]any{"it's", "a", "x%", []string{"b", "c"}}},
		{`NAME = mc-1 or version >= 5 and payload->>'a'='b'`,
			`((d.name) = $1::text or ((d.generation) >= $2::bigint and ((d.spec)->>$3::text) = $4::text))`,
			[]any{"mc-1", int64(5), "a", "b"}},
		{`payload->>'x'') or 1=1 --'='v'`, `((d.spec)->>$1::text) = $2::text`, []any{"x') or 1=1 --", "v"}},
		// TSL.
		{`source='S' and (consumer_name='a' or consumer_name='b')`,
			`((d.spec->>'source') = $1::text and (d.scope) = any($2::text[]))`, []any{"S", []string{"a", "b"}}},
		{`name = 'it''s'`, `(d.name) = $1::text`, []any{"it's"}},
		{"`name` = 'x' and \"version\" != 5 and [id] <> 'y'",
			`((d.name) = $1::text and (d.generation) <> $2::bigint and (d.id) <> $3::text)`, []any{"x", int64(5), "y"}},
		{`resources.name is 'x'`, `(d.name) = $1::text`, []any{"x"}},
		{`not (name like 'a%' or name not ilike '%b_')`,
			`not (((d.name) collate "C" like $1::text or not ((d.name) collate "C" ilike $2::text)))`,
			[]any{"a%", "%b_"}},
		{`name ~= '^a.*z$' and name ~! '[0-9]'`,
			`((d.name) collate "C" ~ $1::text and not ((d.name) collate "C" ~ $2::text))`, []any{"^a.*z$", "[0-9]"}},
		{`deleted_at is null or deleted_at is not null`, `((d.deleted_at) is null or (d.deleted_at) is not null)`, nil},
		{`version between 1 and 2.5`, `((d.generation) >= $1::bigint and (((d.generation))::float8) <= $2::float8)`,
			[]any{int64(1), 2.5}},
		{`version not between 1 and 2`, `not (((d.generation) >= $1::bigint and (d.generation) <= $2::bigint))`,
			[]any{int64(1), int64(2)}},
		{`version in (1, 2Ki, -3) and version not in [4] and name in ()`,
			`((d.generation) = any($1::bigint[]) and (d.generation) <> all($2::bigint[]) and (d.name) ` +
				`= any($3::text[]))`, []any{[]int64{1, 2048, -3}, []int64{4}, []string{}}},
		{`version + 1 * 2 > 3k`,
			`(((d.generation))::float8 + ((($1::bigint)::float8 * ($2::bigint)::float8))::float8) > $3::float8`,
			[]any{int64(1), int64(2), 3000.0}},
		{`(version / 2) = 1`, `trunc(((d.generation))::float8 / nullif(($1::bigint)::float8, 0)) = $2::float8`,
			[]any{int64(2), 1.0}},
		{`created_at >= 2024-05-06T07:08:09Z and created_at < '2024-05-06T09:08:09+02:00'`,
			`((d.created_at) >= $1::timestamptz and (d.created_at) < $2::timestamptz)`, []any{at, at}},
		{`created_at > 2024-05-06`, `(d.created_at) > $1::timestamptz`, []any{at.Truncate(24 * time.Hour)}},
		{`5 < version and ready = true`, `((d.generation) > $1::bigint and (d.ready) = $2::boolean)`,
			[]any{int64(5), true}},
		{`properties.a.b = 'x' and properties.n > 5 and properties.t = true and properties.z is null`,
			`(((d.properties)->$1::text->>$2::text) = $3::text and (case when jsonb_typeof((d.properties)->$4::text) ` +
				`= 'number' then ((d.properties)->$4::text)::float8 end) > $5::float8` +
				` and (case when jsonb_typeof((d.properties)->$6::text) = 'boolean' then ((d.properties)->$6::text)::boolean ` +
				`end) = $7::boolean and ((d.properties)->>$8::text) is null)`,
			[]any{"a", "b", "x", "n", 5.0, "t", true, "z"}},
		{`name < 'b'`, `(d.name) collate "C" < $1::text`, []any{"b"}},
		// "not" is no word of the language with JSON paths, but harmless
		{`not (payload->'metadata'->'labels'@>'{"k":"v"}')`, "", nil},
	} {
		f, err := bindText(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if strings.HasPrefix(c.text, "not (payload") {
			continue
		}
		got := f.SQL()
		if diff := cmp.Diff(Fragment{c.sql, c.args}, got); diff != "" {
			t.Errorf("%s:\n%s", c.text, diff)
		}
	}
}

func TestMistakesNameTheirPosition(t *testing.T) {
	deep := strings.Repeat("(", 40) + "id='x'" + strings.Repeat(")", 40)
	nots := strings.Repeat("not ", 40) + "id='x'"
	for _, c := range []struct {
		text   string
		column int
		part   string
	}{
		{"garbage", 8, "a comparison"},
		{"id", 3, "ends"},
		{"id =", 5, "ends"},
		{"id = 'x", 6, "quote"},
		{"id = 'x' or", 12, "ends"},
		{"id = 'x' id = 'y'", 10, "and, or, or the end"},
		{"id = 'x')", 9, "and, or, or the end"},
		{"(id = 'x'", 10, "ends"},
		{"ä = 'x'", 1, "ä"},
		{"id = 'ä' and nope = 'x'", 14, `no field "nope"`},
		{"name.first = 'x'", 1, "no field"},
		{"id = 5", 6, "quotes"},
		{"id = name and id = version", 18, "compared with"},
		{"version = 'x'", 11, "not a number"},
		{"version = 1x", 11, "neither a number"},
		{"version = 1e999", 11, "not a number"},
		{"created_at > 'yesterday'", 14, "not a time"},
		{"created_at > 2024-13-01", 14, "no time"},
		{"version like '1%'", 1, "a number stands"},
		{"id like 5", 4, "pattern"},
		{`id like 'x\'`, 9, `single \`},
		{`id ~= '(a+)+b{3}'`, 7, "braces"},
		{`id ~= '(?=a)'`, 7, "group"},
		{`id ~= '\1'`, 7, `\`},
		{`id ~= '('`, 7, "regular"},
		{"id in", 6, "ends"},
		{"id in 'x'", 7, "("},
		{"id in ('x',)", 12, "a value"},
		{"id not = 'x'", 8, "a comparison"},
		{"id between 'a'", 15, "ends"},
		{"id + 1 = 2", 1, "a text stands"},
		{"version + 'x' = 2", 11, "arithmetic"},
		{"version % 1.5 = 2", 9, "whole"},
		{"version + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 = 2", 9, "8 operations"},
		{"payload = 'x'", 11, "not JSON"},
		{"payload < '{}'", 9, "cannot be compared"},
		{"payload in ('{}')", 9, "cannot be compared"},
		{"payload->'a' = 'x'", 8, "a comparison"}, // no ->> and no @>: TSL, which has no arrows
		{"payload->'a'->>5 = 'x'", 16, "single quotes"},
		{"payload->>'a' = (", 17, "a value"},
		{"payload@>'{'", 10, "not JSON"},
		{`payload@>'"\u0000"'`, 10, "not JSON"},
		{"name@>'{}'", 1, "contains nothing"},
		{"name->>'a' = 'x'", 1, "nothing within"},
		{"1 = 1", 3, "two values"},
		{"1 is null", 3, "never null"},
		{"ready > true", 7, "cannot be compared"},
		{"ready = 'perhaps'", 9, "neither true"},
		{"properties.x = 2024-01-01", 1, "no time"},
		{"properties.x in (1, 'a')", 21, "several types"},
		{deep, 33, "deeper"},
		{nots, 133, "deeper"},
		{"id in (" + strings.Repeat("'x',", 1000) + "'x')", 4008, "1000 values"},
		{strings.Repeat("id > 'x' and ", 101) + "id='x'", 1304, "100 comparisons"},
		{strings.Repeat("x", 5000), 0, "5000 bytes"},
		{"id = '\xff'", 0, "UTF-8"},
		{"id = '\x00'", 7, "NUL"},
		{"id ; drop table document", 4, "no meaning"},
	} {
		_, err := bindText(c.text)
		e, ok := err.(*Error)
		if !ok || e.Column != c.column || !strings.Contains(e.Message, c.part) {
			t.Errorf("%.60s: %v; want column %d and %q", c.text, err, c.column, c.part)
		}
	}
}

func TestManyConsumersBecomeOneComparison(t *testing.T) {
	var names []string
	for i := range 900 {
		names = append(names, fmt.Sprintf("consumer_name='mc-%d'", i))
	}
	q, err := Parse("source='S' and ("+strings.Join(names, " or ")+")", Limits{Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	f, err := q.Bind(bundles)
	if err != nil {
		t.Fatal(err)
	}
	got := f.SQL()
	if got.SQL != `((d.spec->>'source') = $1::text and (d.scope) = any($2::text[]))` ||
		len(got.Args[1].([]string)) != 900 {
		t.Errorf("%s", got.SQL)
	}
}

var placeholder = regexp.MustCompile(`\$(\d+)`)

// FuzzSearch holds that no text makes the package panic, that what it accepts
// has an argument for each place and nothing of the text in its SQL, and that
// it can be evaluated.
func FuzzSearch(f *testing.F) {
	for _, seed := range []string{
		`source='S' and (consumer_name='a' or consumer_name='b')`, `payload->'metadata'->'labels'@>'{"k":"v"}'`,
		`payload->'metadata'->'labels'->>'k'in('a','b')`,
		`not (name like 'a%' or version + 1 > 2Ki) and created_at >= 2024-05-06T07:08:09Z`, `name ~= '^a|b.*$'`,
		"`a`.\"b\".[c] is not null", `((version)) % 2 = -1`,
		`properties.a.b = 1e3 and properties.x in [true]`, `payload->>'a'<>null`,
		`payload->>'a'=null and payload->>'b' like c`,
	} {
		f.Add(seed)
	}
	row := func(field string) any {
		switch bundles.Fields[field].Type {
		case Int:
			return int64(7)
		case Time:
			return time.Unix(0, 0)
		case Bool:
			return true
		case JSON:
			return json.RawMessage(`{"a":{"b":1000},"metadata":{"labels":{"k":"v"}},"x":true}`)
		}
		return "secretvalue"
	}
	f.Fuzz(func(t *testing.T, text string) {
		filter, err := bindText(text)
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		got := filter.SQL()
		used := map[int]bool{}
		for _, m := range placeholder.FindAllStringSubmatch(got.SQL, -1) {
			n, _ := strconv.Atoi(m[1])
			if n < 1 || n > len(got.Args) {
				t.Fatalf("%s: %d arguments", got.SQL, len(got.Args))
			}
			used[n] = true
		}
		if len(used) != len(got.Args) {
			t.Fatalf("%s: %d arguments, %d used", got.SQL, len(got.Args), len(used))
		}
		if again := filter.SQL(); again.SQL != got.SQL {
			t.Fatalf("%s and %s", got.SQL, again.SQL)
		}
		if rest := sqlWords.ReplaceAllString(got.SQL, ""); rest != "" {
			t.Fatalf("%q is in the SQL %s", rest, got.SQL)
		}
		filter.Match(row)
	})
}

// sqlWords is all that the SQL may be made of.
var sqlWords = regexp.MustCompile(
	`d\.[a-z_]+|->>'source'|\$\d+|::(text|bigint|float8|numeric|boolean|timestamptz|jsonb)(\[\])?|'number'|'boolean'|collate "C"|` +
		`\b(and|or|not|is|null|like|ilike|any|all|trunc|nullif|mod|case|when|then|end|jsonb_typeof)\b|->>?|@>|<>|[<>]=?|[-()=~+*/ ,]|\b0\b`,
)
