package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var doc = map[string]any{
	"a": map[string]any{"b": int64(1), "c.d": "dotted", "e f": "spaced", "x/y": "slash"},
	"l": []any{int64(0), int64(1), int64(2), int64(3), int64(4)},
	"conditions": []any{
		map[string]any{"type": "Ready", "status": "True", "n": int64(1), "ok": true},
		map[string]any{"type": "Other (x)", "status": "False", "n": 2.5, "ok": false},
		map[string]any{"type": "Last", "status": "Unknown", "n": int64(-3)},
	},
	"null": nil, "empty": []any{}, "s": "text",
}

func TestPathsFindValues(t *testing.T) {
	list := func(v ...any) []any { return v }
	conditions := doc["conditions"].([]any)
	for _, c := range []struct {
		path string
		want []any
	}{
		{".a.b", list(int64(1))},
		{"a.b", nil}, // an error, see below
		{"{.a.b}", list(int64(1))},
		{"$.a.b", list(int64(1))},
		{"{ $.a.b }", list(int64(1))},
		{".a.absent.deep", nil},
		{".null.deep", nil},
		{".null", list(nil)},
		{".s.deep", nil},
		{"", list(doc)},
		{"@", list(doc)},
		{".a['b']", list(int64(1))},
		{"['a'].b", list(int64(1))},
		{`.a.c\.d`, list("dotted")},
		{`.a['c\.d']`, list("dotted")},
		{`.a['c.d']`, nil}, // as kubectl reads it: .a.c.d
		{`.a["c.d"]`, list("dotted")},
		{`.a["e f"]`, list("spaced")},
		{`.a['e f']`, list("spaced")},
		{`.a.x/y`, list("slash")},
		{".a['b','x/y']", list(int64(1), "slash")},
		{".a.*", list(int64(1), "dotted", "spaced", "slash")},
		{".l[*]", list(int64(0), int64(1), int64(2), int64(3), int64(4))},
		{".l[0]", list(int64(0))},
		{".l[-1]", list(int64(4))},
		{".l[1:3]", list(int64(1), int64(2))},
		{".l[-2:]", list(int64(3), int64(4))},
		{".l[:2]", list(int64(0), int64(1))},
		{".l[::2]", list(int64(0), int64(2), int64(4))},
		{".l[0:5:9223372036854775807]", list(int64(0))},
		{".l[2:2]", nil},
		{".l[0,2,-1]", list(int64(0), int64(2), int64(4))},
		{".empty[*]", nil},
		{".conditions[*].type", list("Ready", "Other (x)", "Last")},
		{`.conditions[?(@.type=="Ready")].status`, list("True")},
		{`.conditions[?(@.type == 'Ready')].status`, list("True")},
		{`.conditions[?(@.type=="Other (x)")].status`, list("False")},
		{`.conditions[?(@.type!="Ready")].type`, list("Other (x)", "Last")},
		{`.conditions[?(@.n>1)].type`, list("Other (x)")},
		{`.conditions[?(@.n>=1)].type`, list("Ready", "Other (x)")},
		{`.conditions[?(@.n<0)].type`, list("Last")},
		{`.conditions[?(@.n==-3)].type`, list("Last")},
		{`.conditions[?(@.n<=2.5)].type`, list("Ready", "Other (x)", "Last")},
		{`.conditions[?(@.ok==true)].type`, list("Ready")},
		{`.conditions[?(@.ok)].type`, list("Ready", "Other (x)")},
		{`.conditions[?(@.absent)].type`, nil},
		{`.conditions[?(@.absent=="x")].type`, nil},
		{`.conditions[?(@.type==@.status)].type`, nil},
		{`.conditions[?(@.type=="nobody")]`, nil},
		{"..type", list("Ready", "Other (x)", "Last")},
		{".conditions..status", list("True", "False", "Unknown")},
		{".conditions[0]", list(conditions[0])},
	} {
		if c.path == "a.b" {
			continue
		}
		p, err := ParsePath(c.path)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		got, err := p.Find(doc)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" && (len(c.want) > 0 || len(got) > 0) {
			t.Errorf("%s: (-want +got)\n%s", c.path, diff)
		}
	}
}

func TestInvalidPathsAreRefused(t *testing.T) {
	for path, want := range map[string]string{
		"a.b":                            "unrecognized identifier a",
		"{range .l[*]}{.a}{end}":         "unrecognized identifier range",
		".a}{.b":                         "unrecognized character",
		".l[":                            "unterminated array",
		".l[a]":                          "invalid array index a",
		".l[--1]":                        "invalid array index",
		".l[99999999999999999999]":       "is not a number",
		".l[?(@.a==1]":                   "unterminated filter",
		".l[?(@.a==1)":                   "unclosed array expect ]",
		".l[?(@.a===1)]":                 "unrecognized filter operator ===",
		`.l[?(@.a=="x)]`:                 "unterminated",
		"....a":                          "multiple recursive descent",
		"'abc":                           "unterminated quoted string",
		".a\n.b":                         "unclosed action",
		"." + strings.Repeat("a", 1<<15): "longer than",
	} {
		if _, err := ParsePath(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %q", path, err, want)
		}
	}
}

func TestFailedLookupsNameTheReason(t *testing.T) {
	for path, want := range map[string]string{
		".l[5]":                        "array index out of bounds: index 5, length 5",
		".l[-6]":                       "array index out of bounds: index -1, length 5",
		".l[1:7]":                      "array index out of bounds: index 6, length 5",
		".l[3:1]":                      "starting index 3 is greater than ending index 1",
		".l[0:2:0]":                    "step must be > 0",
		".a[0]":                        "is not array or slice",
		".a[?(@.b==1)]":                "is not array or slice and cannot be filtered",
		".empty[0]":                    "array index out of bounds",
		`.conditions[?(@.n=="x")]`:     "incompatible types for comparison",
		`.conditions[?(@.type==true)]`: "incompatible types for comparison",
		`.conditions[?(@.ok<true)]`:    "invalid type for comparison",
		`.conditions[?(@==1)]`:         "invalid type for comparison",
	} {
		p, err := ParsePath(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if _, err := p.Find(doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestAnExpensivePathFailsCleanly(t *testing.T) {
	var deep any = "x"
	for range 60 {
		deep = map[string]any{"a": deep, "b": []any{deep}} // shares what is below: 2^60 ways down
	}
	for _, path := range []string{"..a", "..a..b", ".*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*"} {
		p, err := ParsePath(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Find(deep); !errors.Is(err, ErrCost) {
			t.Errorf("%s: %v, want ErrCost", path, err)
		}
	}
}

// A path made of a document's own keys leads to the value there, however the
// keys are written.
func TestAPathToAValueFindsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.String().Draw(t, "value")
		var doc any = want
		path := ""
		for range rapid.IntRange(1, 5).Draw(t, "depth") {
			if rapid.Bool().Draw(t, "list") {
				before := rapid.IntRange(0, 3).Draw(t, "before")
				after := rapid.IntRange(0, 3).Draw(t, "after")
				list := make([]any, before+1+after)
				list[before] = doc
				doc = list
				path = fmt.Sprintf("[%d]", rapid.SampledFrom([]int{before, -after - 1}).Draw(t, "index")) + path
				continue
			}
			key := rapid.StringMatching(`[a-zA-Z0-9_./\-]{1,8}`).Draw(t, "key")
			doc = map[string]any{key: doc, key + "!": "other"}
			switch rapid.IntRange(0, 2).Draw(t, "form") {
			case 0:
				path = "." + strings.ReplaceAll(key, ".", `\.`) + path
			case 1:
				path = "['" + strings.ReplaceAll(key, ".", `\.`) + "']" + path
			case 2:
				path = `["` + key + `"]` + path
			}
		}
		p, err := ParsePath(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		got, err := p.Find(doc)
		if err != nil || !slices.Equal(got, []any{any(want)}) {
			t.Fatalf("%s in %v: %v, %v", path, doc, got, err)
		}
	})
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{
		".a.b", "{.l[0:2:1]}", `.conditions[?(@.type=="Ready")].status`, "..type", ".a['b','c.d']", `.a["e f"]`,
		"$.l[-1]", ".*", `'x\u00e9'`, "1.5", "true",
		"[?(@.a!=\"x)\")]", "\xff", ".a\\", "{}", "[,]", "['']",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePath(text)
		if err != nil {
			return
		}
		before := fmt.Sprint(doc)
		first, err1 := p.Find(doc)
		second, err2 := p.Find(doc)
		if !cmp.Equal(first, second) || (err1 == nil) != (err2 == nil) {
			t.Errorf("%q finds now this, now that", text)
		}
		if fmt.Sprint(doc) != before {
			t.Errorf("%q changes the document", text)
		}
	})
}
