package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		in   any
		kind string
		want any // an error's text after "!"
	}{
		{"a", "", "a"}, {int64(3), "string", "3"}, {2.5, "string", "2.5"}, {1e21, "string", "1000000000000000000000"},
		{true, "string", "true"},
		{"42", "int", int64(42)}, {"3.9", "int64", int64(3)}, {3.9, "int", int64(3)}, {true, "int", int64(1)},
		{"x", "int", "!is no number"},
		{1e300, "int", "!no whole number"}, {nil, "int", "!a null is no number"},
		{[]any{}, "int", "!a list is no number"},
		{"2.5", "float", 2.5}, {int64(2), "float64", 2.0}, {"x", "float", "!is no number"},
		{"yes", "bool", true}, {"Off", "bool", false}, {"", "bool", false}, {int64(0), "bool", false},
		{0.5, "bool", true}, {"maybe", "bool", "!neither true nor false"},
		{map[string]any{}, "bool", "!a mapping is neither"},
	} {
		got, err := convert(c.in, c.kind)
		if want, isError := strings.CutPrefix(fmt.Sprint(c.want), "!"); isError {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v as %s: %v, want %q", c.in, c.kind, err, want)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%v as %s: %#v %v", c.in, c.kind, got, err)
		}
	}
}

func TestOperators(t *testing.T) {
	list := []any{"a", int64(1), 2.5}
	for _, c := range []struct {
		operator  string
		v, wanted any
		met       bool
		fails     bool
	}{
		{"equals", int64(5), 5.0, true, false}, {"equals", "5", int64(5), false, false}, {"equals", nil, nil, true,
			false}, {"equals", nil, "", false, false},
		{"equals", list, []any{"a", int64(1), 2.5}, true, false}, {"notEquals", "a", "b", true, false},
		{"notEquals", nil, "b", true, false},
		{"in", 1.0, list, true, false}, {"in", "z", list, false, false}, {"notIn", "z", list, true, false},
		{"in", nil, list, false, false}, {"in", "a", "abc", false, true},
		{"contains", list, "a", true, false}, {"contains", "abc", "bc", true, false},
		{"contains", map[string]any{"k": 1}, "k", true, false}, {"contains", nil, "a", false, true},
		{"contains", "a", int64(1), false, true},
		{"greaterThan", int64(2), 1.5, true, false}, {"lessThan", int64(2), 1.5, false, false},
		{"greaterThanOrEqual", int64(2), int64(2), true, false},
		{"lessThanOrEqual", 2.0, int64(2), true, false}, {"greaterThan", "10", int64(2), false, true},
		{"lessThan", nil, int64(2), false, true},
		{"exists", "", nil, false, false}, {"exists", false, nil, true, false}, {"exists", []any{}, nil, false, false},
		{"notExists", nil, nil, true, false}, {"notExists", "x", "", false, false},
		{"like", "a", "a", false, true},
	} {
		met, err := applyOperator(c.operator, c.v, c.wanted)
		if met != c.met || (err != nil) != c.fails {
			t.Errorf("%v %s %v: %v %v", c.v, c.operator, c.wanted, met, err)
		}
	}
}

// Whatever a value is, it stays one value of a manifest: it cannot add keys.
func TestAValueCannotChangeAManifestsShape(t *testing.T) {
	const task = `
params: [{name: v, source: env.V}]
resources:
- name: r
  manifest:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: n, namespace: x, annotations: {hyperfleet.io/generation: "1"}}
    data: {"k": "a {{ .v }} b", both: "{{ .v }}{{ .v }}"}
  discovery: {namespace: x, by_name: n}
`
	var value string
	s := newShelf()
	e := newEngine(t, task, newCLM(t, nil), s, func(o *Options) {
		o.LookupEnv = func(string) (string, bool) {
			return value, true
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		value = rapid.OneOf(rapid.String(), rapid.StringMatching("[\\n :{}\\[\\]'\"#|>&*!%@`-]{0,12}"),
			rapid.Just("{{ .v }}")).Draw(t, "value")
		clear(s.objects)
		if r := e.Run(t.Context(), clusterEvent(1)); r.Err() != nil {
			t.Fatal(r.Err())
		}
		want := map[string]any{"k": "a " + value + " b", "both": value + value}
		if diff := cmp.Diff(want, s.objects[identity{"v1", "ConfigMap", "x", "n"}]["data"]); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A payload without templates and definitions is unchanged.
func TestAPayloadKeepsItsForm(t *testing.T) {
	plain := rapid.StringMatching(`[a-z]{1,4}`)
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		leaves := []*rapid.Generator[any]{rapid.Just[any](nil), rapid.Bool().AsAny(),
			rapid.Int64Range(-1e9, 1e9).AsAny(), rapid.StringN(0, 8, -1).Filter(
				func(s string) bool { return !strings.Contains(s, "{{") }).AsAny()}
		if depth == 0 {
			return rapid.OneOf(leaves...)
		}
		return rapid.OneOf(append(leaves, rapid.SliceOfN(value(depth-1), 0, 3).AsAny(),
			rapid.MapOfN(plain.Filter(func(s string) bool { return s != "expression" && s != "field" }), value(depth-1),
				0, 3).AsAny())...)
	}
	rapid.Check(t, func(t *rapid.T) {
		in := map[string]any{"top": value(3).Draw(t, "value")}
		want, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jsonInYAML(in)
		if err != nil {
			t.Fatal(err)
		}
		var v Value
		if found := decodeValue("v.json", []byte(text), &v); found != nil {
			t.Fatal(found)
		}
		c := newCompiler(nil, &Task{}, today)
		built, err := c.compileDocument(v, definitions).build(t.Context(), frame{vars: map[string]any{}})
		if err != nil || c.errors != nil {
			t.Fatal(err, c.errors)
		}
		got, err := json.Marshal(built)
		if err != nil || string(got) != string(want) {
			t.Fatalf("%s became %s %v", want, got, err)
		}
	})
}

func TestJSONInYAMLKeepsEachCharacter(t *testing.T) {
	for r := rune(1); r <= utf8.MaxRune; r++ {
		if !utf8.ValidRune(r) || r > 0x3100 && r < 0xe000 || r > 0x10010 && r < 0x10fff0 {
			continue
		}
		want := "a" + string(r) + " b"
		text, err := jsonInYAML(want)
		if err != nil {
			t.Fatal(err)
		}
		var v Value
		if found := decodeValue("v.yaml", []byte("{k: "+text+"}"), &v); found != nil {
			t.Fatalf("U+%04X: %s: %v", r, text, found)
		}
		if got := v.Value.(map[string]any)["k"]; got != want {
			t.Fatalf("U+%04X: %s became %q", r, text, got)
		}
	}
}

// Defect 7.2 t of the original: every variable was visible.
func TestOnlyNamedVariablesAreVisible(t *testing.T) {
	const task = `
params:
- {name: region, source: env.REGION}
- {name: viaExpression, source: {expression: 'env.?ZONE.orValue("none")'}}
- {name: all, source: {expression: toJson(env)}}
- {name: dynamic, source: {expression: 'env["SEC" + "RET"]'}, default: hidden}
post: {payloads: [{name: p, build: {t: "{{ .env.RACK }}", all: "{{ .env }}"}}]}
`
	env := map[string]string{"REGION": "r", "ZONE": "z", "RACK": "k", "SECRET": "s3cret"}
	e := newEngine(t, task, newCLM(t, nil), nil, func(o *Options) {
		o.LookupEnv = func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	})
	r := e.Run(t.Context(), clusterEvent(1))
	if r.Err() != nil || r.Params["region"] != "r" || r.Params["viaExpression"] != "z" ||
		r.Params["dynamic"] != "hidden" || !strings.Contains(r.Params["p"].(string), `"t":"k"`) {
		t.Errorf("%v %v", r.Params, r.Err())
	}
	if strings.Contains(fmt.Sprint(r.Params), "s3cret") {
		t.Errorf("%v", r.Params)
	}
}

func TestParamsFromFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text, empty, big := write("text", " 42 \n"), write("empty", "\n"), write("big", strings.Repeat("x", maxFile+1))
	for _, c := range []struct {
		param string
		want  any
		fails string
	}{
		{"source: {file: {path: " + text + "}}", "42", ""},
		{"type: int, source: {file: {path: " + text + "}}", int64(42), ""},
		{"source: {file: {path: " + text + ", trim: false}}", " 42 \n", ""},
		{"default: d, source: {file: {path: " + empty + "}}", "d", ""},
		{"required: true, source: {file: {path: " + empty + "}}", nil, "is empty"},
		{"required: true, source: {file: {path: " + big + "}}", nil, "larger than"},
		{"required: true, source: {file: {path: " + dir + "/absent}}", nil, "no such file"},
		{"default: d, source: {file: {path: " + dir + "/absent}}", "d", ""},
		{"type: int, default: 7, source: env.NOTHING", int64(7), ""},
		{"type: int, required: true, source: event.kind", nil, "is no number"},
		{"source: event.generation", int64(2), ""},
		{"source: event.owner_references.id", nil, ""},
		{"required: true, source: {expression: 'null'}", nil, "there is none"},
		{"source: config.clients.hyperfleet_api.version", "v1", ""},
	} {
		e := newEngine(t, "params: [{name: p, "+c.param+"}]", nil, nil)
		r := e.Run(t.Context(), Event{ID: "1", Kind: "Cluster", Generation: 2})
		if r.Params["p"] != c.want {
			t.Errorf("%s: %#v", c.param, r.Params["p"])
		}
		if err := r.Errors[ParamExtraction]; (err != nil) != (c.fails != "") || err != nil &&
			!strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v", c.param, err)
		}
	}
}

// If a discovery fails, nothing is applied or deleted.
func TestUndiscoveredObjectsAreNotDeleted(t *testing.T) {
	const task = `
params: [{name: id, source: event.id}]
resources:
- name: child
  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: child, namespace: x, annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {namespace: x, by_name: child}
  lifecycle: {delete: {when: {expression: CHILD}}}
- name: parent
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: x, annotations: {hyperfleet.io/generation: "1"}}}
  discovery: {by_name: x}
  lifecycle: {delete: {when: {expression: "!resources.?child.hasValue()"}}}
`
	s := newShelf()
	s.objects[identity{"v1", "Namespace", "", "x"}] = Object{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "x"}}
	down := errors.New("the API is down")
	s.fail = func(op, name string) error {
		if op == "discover" && name == "ConfigMap" {
			return down
		}
		return nil
	}
	r := newEngine(t, strings.Replace(task, "CHILD", "true", 1), newCLM(t, nil), s).Run(t.Context(), clusterEvent(1))
	if !errors.Is(r.Err(), down) || len(s.objects) != 1 || len(r.Resources) != 0 {
		t.Errorf("%v %v", r.Err(), s.objects)
	}
	s.fail = nil
	r = newEngine(t, strings.Replace(task, "CHILD", "nobody.knows", 1), newCLM(t, nil), s).Run(t.Context(),
		clusterEvent(1))
	if r.Status != Failed || r.Resources[0].Operation != Deleted || !strings.Contains(r.Err().Error(),
		"lifecycle.delete.when") {
		t.Errorf("%+v %v", r.Resources, r.Err())
	}
}

func TestIncompleteManifestsFail(t *testing.T) {
	for manifest, want := range map[string]string{
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: x}}`: "no annotation hyperfleet.io/generation",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, ` +
			`annotations: {hyperfleet.io/generation: "zero"}}}`: "is \"zero\" and no generation",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .empty }}", ` +
			`annotations: {hyperfleet.io/generation: "1"}}}`: "ConfigMap  has no metadata.name",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .nobody }}", ` +
			`annotations: {hyperfleet.io/generation: "1"}}}`: "there is no nobody",
		`"a: [{{ .empty }}"`: "as rendered",
		`"[{{ .empty }}]"`:   "it is a list",
		`{apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: a, ` +
			`annotations: {hyperfleet.io/generation: "1"}}}`: "manifests is empty",
		`{apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: a, ` +
			`annotations: {hyperfleet.io/generation: "1"}}, spec: {workload: {manifests: [{apiVersion: v1, kind: Secret, ` +
			`metadata: {name: s}}]}}}`: "spec.workload.manifests[0]: Secret s has no annotation",
	} {
		task := "params: [{name: empty, source: {expression: '\"\"'}}]\nresources: [{name: r, manifest: " + manifest +
			", discovery: {by_name: a}}]"
		s := newShelf()
		r := newEngine(t, task, newCLM(t, nil), s).Run(t.Context(), clusterEvent(1))
		if r.Err() == nil || !strings.Contains(r.Err().Error(), want) || len(s.log) != 0 {
			t.Errorf("%s: %v %v", manifest, r.Err(), s.log)
		}
	}
}
