package store

import (
	"context"
	"testing"

	"atoll.dev/internal/pgtest"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

func TestSameJSON(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":2}`, ` { "b" : 2.0, "a" : 1e0 } `, true},
		{`{"a":1}`, `{"a":1,"b":null}`, false},
		{`{"a":1,"a":2}`, `{"a":2}`, true},
		{`[1,2]`, `[2,1]`, false},
		{`0`, `-0.00`, true},
		{`1e400`, `10e399`, true},
		{`1e400`, `1e401`, false},
		{`12.50`, `125e-1`, true},
		{`-1`, `1`, false},
		{`"\u00e9"`, `"é"`, true},
		{`"1"`, `1`, false},
		{`null`, `false`, false},
	} {
		got, err := SameJSON([]byte(c.a), []byte(c.b))
		if err != nil || got != c.same {
			t.Errorf("%s and %s: %v %v", c.a, c.b, got, err)
		}
	}
}

// PostgreSQL's own opinion is the oracle.
func TestSameJSONAgreesWithJSONB(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-2])?`)
	leaf := rapid.OneOf(number, rapid.SampledFrom([]string{`null`, `true`, `false`, `""`, `"a"`, `"\u0061"`, `"A"`}))
	value := rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 4).Draw(t, "shape") {
		case 0:
			return `[` + leaf.Draw(t, "x") + `, ` + leaf.Draw(t, "y") + `]`
		case 1:
			key := rapid.SampledFrom([]string{`"a"`, `"b"`, `"\u0061"`})
			return `{` + key.Draw(t, "k") + `:` + leaf.Draw(t, "x") + `,` + key.Draw(t, "l") + `:[` + leaf.Draw(
				t, "y") + `]}`
		}
		return leaf.Draw(t, "leaf")
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := value.Draw(t, "a"), value.Draw(t, "b")
		var want bool
		if err := conn.QueryRow(context.Background(), `select $1::text::jsonb = $2::text::jsonb`, a, b).Scan(
			&want); err != nil {
			t.Fatal(err)
		}
		got, err := SameJSON([]byte(a), []byte(b))
		if err != nil || got != want {
			t.Fatalf("%s and %s: %v %v, jsonb says %v", a, b, got, err, want)
		}
	})
}
