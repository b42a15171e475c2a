package rest

import (
	"errors"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePage(t *testing.T) {
	for _, tc := range []struct {
		query string
		want  Page
		bad   bool
	}{
		{"", Page{1, 100}, false},
		{"page=3&size=10", Page{3, 10}, false},
		{"size=5000", Page{1, 500}, false},
		{"page=0", Page{}, true},
		{"page=-1", Page{}, true},
		{"size=0", Page{}, true},
		{"size=x", Page{}, true},
		{"page=99999999999", Page{}, true},
		{"page=%zz", Page{}, true},
		{"a;b=1", Page{}, true},
	} {
		got, err := ParsePage(httptest.NewRequest("GET", "/?"+tc.query, nil), Page{Size: 100}, 500)
		if e, ok := errors.AsType[*Error](err); tc.bad != ok || ok && e.Status != 400 {
			t.Errorf("%s: %v", tc.query, err)
		}
		if got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.query, got, tc.want)
		}
	}
	if got := (Page{Number: 1 << 31, Size: 1 << 31}).Offset(); got < 0 {
		t.Errorf("offset overflows: %d", got)
	}
}

func TestParseOrder(t *testing.T) {
	got, err := ParseOrder("name, created_at DESC ,id asc", "id", "name", "created_at")
	want := []Order{{"name", false}, {"created_at", true}, {"id", false}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range []string{"secret", "name up", "name asc desc", ",", "name,", "name;drop table"} {
		if got, err := ParseOrder(bad, "name"); err == nil {
			t.Errorf("%q gives %v", bad, got)
		}
	}
	if got, err := ParseOrder(" ", "name"); got != nil || err != nil {
		t.Error(got, err)
	}
}

func TestFieldsSelectMembersAndKeepTheID(t *testing.T) {
	const doc = `{"id":"1","kind":"Thing","status":{"phase":"Ready","conditions":[{"type":"A","status":"True"},` +
		`{"type":"B"}]},"n":null,"big":12345678901234567890}`
	for _, tc := range []struct{ fields, want string }{
		{"", doc},
		{"*", doc},
		{"kind", `{"id":"1","kind":"Thing"}`},
		{"big,nothing", `{"big":12345678901234567890,"id":"1"}`},
		{"status.phase", `{"id":"1","status":{"phase":"Ready"}}`},
		{"status.phase,status",
			`{"id":"1","status":{"phase":"Ready","conditions":[{"type":"A","status":"True"},{"type":"B"}]}}`},
		{"status,status.phase",
			`{"id":"1","status":{"phase":"Ready","conditions":[{"type":"A","status":"True"},{"type":"B"}]}}`},
		{"status.conditions.type", `{"id":"1","status":{"conditions":[{"type":"A"},{"type":"B"}]}}`},
		{"kind.deeper", `{"id":"1","kind":"Thing"}`},
		{"n.x", `{"id":"1","n":null}`},
	} {
		f, err := ParseFields(httptest.NewRequest("GET", "/?fields="+url.QueryEscape(tc.fields), nil))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Select([]byte(doc))
		if err != nil || string(got) != tc.want {
			t.Errorf("fields=%s gives %s, %v; want %s", tc.fields, got, err, tc.want)
		}
	}
	for _, bad := range []string{",", "a..b", ".a", "a,"} {
		if _, err := ParseFields(httptest.NewRequest("GET", "/?fields="+bad, nil)); err == nil {
			t.Errorf("fields=%s accepted", bad)
		}
	}
}
