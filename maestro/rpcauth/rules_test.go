package rpcauth

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRulesNameTheLineOfWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "line 1: the file is empty"},
		{"rules: 7", "line 1: rules: a list is expected"},
		{"- a", "line 1: a mapping is expected"},
		{"roles: []", `line 1: unknown key "roles"; known are rules`},
		{"rules: []\nrules: []", `line 2: the key "rules" is there twice; first in line 1`},
		{"rules:\n- users: [a]\n  source: [b]\n  verbs: [pub]", `line 3: rules[0]: unknown key "source"; known are users, groups, sources`},
		{"rules:\n- users: [a]\n  sources: b\n  verbs: [pub]", "line 3: rules[0].sources: a list is expected"},
		{"rules:\n- users: [a]\n  sources: [b]", "line 2: rules[0]: the rule names no verbs"},
		{"rules:\n- sources: [b]\n  verbs: [pub]", "line 2: rules[0]: the rule names neither users nor groups"},
		{"rules:\n- users: [a]\n  verbs: [pub]", "line 2: rules[0]: the rule names neither sources nor clusters"},
		{"rules:\n- users: [a]\n  sources: [b]\n  verbs:\n  - pub\n  - publish",
			`the verb "publish" is neither pub nor sub`},
		{"rules:\n- users: [7]\n  sources: [b]\n  verbs: [pub]", "line 2: rules[0].users: an entry is not text"},
		{"rules:\n- users: [a]\n  sources: ['b-*']\n  verbs: [pub]", "line 3: rules[0].sources: \"b-*\": * stands alone"},
		{"rules:\n\t- a", "line 2: this is not YAML: found character that cannot start any token"},
		{"rules: null", "line 1: rules: a list is expected"},
		{"{}", "line 1: rules: a list is expected"},
		{"rules: &a [*a]", "rules[0]"},
		{"rules: []\n---\nrules: []", "more than one document"},
	} {
		_, err := parseRules([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v instead of %s", c.text, err, c.want)
		}
	}
}

func TestRulesAllowWhatTheyName(t *testing.T) {
	rs, err := parseRules([]byte(`
rules:
- users: [alice]
  sources: [fleet]
  verbs: [pub, sub]
- groups: [readers]
  sources: ["*"]
  clusters: [mc1]
  verbs: [sub]
`))
	if err != nil {
		t.Fatal(err)
	}
	alice, bob := Caller{user: "alice"}, Caller{user: "bob", groups: []string{"x", "readers"}}
	for _, c := range []struct {
		who   Caller
		verb  Verb
		scope Scope
		name  string
		want  bool
	}{
		{alice, Publish, Sources, "fleet", true},
		{alice, Subscribe, Sources, "fleet", true},
		{alice, Publish, Sources, "other", false},
		{alice, Publish, Clusters, "fleet", false},
		{alice, Subscribe, Clusters, "mc1", false},
		{bob, Subscribe, Sources, "anything", true},
		{bob, Publish, Sources, "anything", false},
		{bob, Subscribe, Clusters, "mc1", true},
		{bob, Subscribe, Clusters, "mc2", false},
		{Caller{user: "readers"}, Subscribe, Clusters, "mc1", false},
		{Caller{}, Subscribe, Sources, "x", false},
	} {
		if got := rs.allow(c.who, c.verb, c.scope, c.name); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func FuzzRules(f *testing.F) {
	f.Add("rules:\n- users: [a]\n  groups: [g]\n  sources: ['*']\n  clusters: [mc1]\n  verbs: [pub, sub]\n")
	f.Add("rules: &a [*a]")
	f.Add("rules: [{users: [a], users: [b]}]")
	f.Fuzz(func(t *testing.T, text string) {
		rs, err := parseRules([]byte(text))
		if err != nil {
			return
		}
		for _, r := range rs {
			if len(r.users)+len(r.groups) == 0 || len(r.verbs) == 0 || len(r.sources)+len(r.clusters) == 0 {
				t.Errorf("a rule that permits nothing: %+v", r)
			}
		}
		if rs.allow(Caller{}, Publish, Sources, "s") {
			t.Error("a caller without a name is permitted")
		}
	})
}

// A file that is broken while it is edited changes nothing.
func TestRulesThatCannotBeReadLeaveTheLastOnes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openRules(path, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing file was opened")
	}
	write("rules:\n- users: [a]\n  sources: [s]\n  verbs: [pub]\n")
	f, err := openRules(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	a := Caller{user: "a"}
	if !f.current().allow(a, Publish, Sources, "s") {
		t.Error("not allowed")
	}
	write("rules:\n- user")
	if _, err := f.load(); err == nil || !f.current().allow(a, Publish, Sources, "s") {
		t.Errorf("a broken file: %v", err)
	}
	write("rules: []")
	if changed, err := f.load(); !changed || err != nil || f.current().allow(a, Publish, Sources, "s") {
		t.Errorf("an empty list: %v %v", changed, err)
	}
}
