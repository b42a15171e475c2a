package jsonvalue

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTextsAreEqualByMeaning(t *testing.T) {
	for _, c := range []struct {
		a, b  string
		equal bool
	}{
		{`{"a":1,"b":[true,null]}`, ` { "b": [true, null], "a": 1.0 } `, true},
		{`{"a":1,"a":2}`, `{"a":2}`, true},
		{`1e2`, `100`, true},
		{`-0`, `0.0e7`, true},
		{`1E400`, `10e399`, true},
		{`9007199254740993`, `9007199254740992`, false},
		{`0.1`, `0.10000000000000001`, false},
		{`1`, `"1"`, false},
		{`1`, `-1`, false},
		{`null`, `false`, false},
		{`{}`, `[]`, false},
		{`{"a":null}`, `{}`, false},
		{`[1,2]`, `[2,1]`, false},
		{`"\u0061"`, `"a"`, true},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			equal, err := EqualTexts([]byte(pair[0]), []byte(pair[1]))
			if err != nil || equal != c.equal {
				t.Errorf("%s and %s: %v, %v", pair[0], pair[1], equal, err)
			}
		}
	}
	for _, bad := range []string{``, `{`, `1 2`, `nul`} {
		if _, err := EqualTexts([]byte(bad), []byte(`1`)); err == nil {
			t.Errorf("%q is taken for JSON", bad)
		}
	}
}

// Templates and Kubernetes' decoder make Go numbers; values that are no JSON are compared as Go does.
func TestNumbersOfGoEqualThoseOfJSON(t *testing.T) {
	for _, c := range []struct {
		a, b  any
		equal bool
	}{
		{1, json.Number("1"), true}, {int64(1), 1.0, true}, {json.Number("1e3"), 1000.0, true},
		{1e21, json.Number("1000000000000000000000"), true}, {-0.0, 0, true}, {0.1, json.Number("0.10"), true},
		{int64(9007199254740993), json.Number("9007199254740993"), true}, {int64(9007199254740993), 9007199254740992.0, false},
		{1, "1", false}, {nil, 0, false}, {true, 1, false}, {[]any{1}, []any{json.Number("1.0")}, true},
		{map[string]any{"a": 1}, map[string]any{"a": int64(2)}, false},
		{[]string{"a"}, []string{"a"}, true}, {[]string{"a"}, []string{"b"}, false}, {"a", []string{"a"}, false},
	} {
		for range 2 {
			if got := Equal(c.a, c.b); got != c.equal {
				t.Errorf("%T %v and %T %v: equal is %v", c.a, c.a, c.b, c.b, got)
			}
			c.a, c.b = c.b, c.a
		}
	}
}

func TestAnAbsentTextEqualsNull(t *testing.T) {
	if !EqualOptional(nil, []byte(" null")) || !EqualOptional(nil, []byte{}) || EqualOptional(nil, []byte(`{}`)) ||
		EqualOptional([]byte(`{`), []byte(`{}`)) {
		t.Error("absent texts are compared wrongly")
	}
}

// The examples of RFC 7396, appendix A.
func TestMergePatchesAreRFC7396s(t *testing.T) {
	for _, c := range []struct{ target, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":1}`, `{"a":9007199254740993}`, `{"a":9007199254740993}`},
	} {
		got, err := MergeTexts([]byte(c.target), []byte(c.patch))
		if err != nil || string(got) != c.want {
			t.Errorf("%s patched by %s is %s, %v; want %s", c.target, c.patch, got, err, c.want)
		}
	}
}

func TestAMergeChangesNeitherSide(t *testing.T) {
	target, patch := map[string]any{"a": map[string]any{"b": json.Number("1")}}, map[string]any{"a": map[string]any{"b": nil}}
	Merge(target, patch)
	want := map[string]any{"a": map[string]any{"b": json.Number("1")}}
	if diff := cmp.Diff(want, target); diff != "" {
		t.Error(diff)
	}
}

func TestAnOverlayKeepsNulls(t *testing.T) {
	base, over := map[string]any{"a": map[string]any{"b": "1", "c": "2"}, "d": "3"},
		map[string]any{"a": map[string]any{"b": nil}, "d": map[string]any{"e": "4"}, "f": []any{"5"}}
	before := []string{fmt.Sprint(base), fmt.Sprint(over)}
	want := map[string]any{"a": map[string]any{"b": nil, "c": "2"}, "d": map[string]any{"e": "4"}, "f": []any{"5"}}
	if got := Overlay(base, over); !Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if fmt.Sprint(base) != before[0] || fmt.Sprint(over) != before[1] {
		t.Errorf("Overlay has changed %v or %v", base, over)
	}
	if got := Overlay(nil, map[string]any{"a": nil}); !Equal(got, map[string]any{"a": nil}) {
		t.Errorf("over nothing: %v", got)
	}
}
