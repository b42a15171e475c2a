package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func env(t testing.TB, o Options) *Env {
	t.Helper()
	e, err := NewEnv(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func compile(t testing.TB, e *Env, expression string, want Type) *Program {
	t.Helper()
	p, err := e.Compile(expression, want)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return p
}

var sample = map[string]any{
	"metadata": map[string]any{"name": "a", "generation": int64(3), "labels": map[string]any{"x/y.z": "1"}},
	"status": map[string]any{
		"phase": "Running", "ratio": 0.5, "ready": true, "nothing": nil,
		"conditions": []any{
			map[string]any{"type": "Ready", "status": "True", "since": "2026-01-02T03:04:05Z"},
			map[string]any{"type": "Degraded", "status": "False"},
		},
	},
}

func TestExpressionsOverDocuments(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"object": Any, "now": Timestamp, "n": Int}})
	vars := map[string]any{"object": sample, "now": time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC), "n": int64(2)}
	for _, c := range []struct {
		expression string
		want       any
	}{
		{`object.status.phase == 'Running'`, true},
		{`object.metadata.generation > 2.5`, true},
		{`object.metadata.generation == 3.0`, true},
		{`object.status.ratio * 2.0`, 1.0},
		{`has(object.status.phase) && !has(object.status.absent)`, true},
		{`object.?status.?absent.?deep.orValue('none')`, "none"},
		{`object.?status.?absent`, nil},
		{`object.status.nothing == null`, true},
		{`object.metadata.labels['x/y.z']`, "1"},
		{`object.status.conditions.filter(c, c.type == 'Ready').map(c, c.status)`, []any{"True"}},
		{`object.status.conditions.exists(c, c.type == 'Degraded' && c.status == 'True')`, false},
		{`now - timestamp(object.status.conditions[0].since) > duration('59s')`, true},
		{`now - timestamp(object.status.conditions[0].since)`, time.Minute},
		{`object.status`, sample["status"]},
		{`{'a': [1, 2.5, 'x', null, {'b': true}]}`, map[string]any{"a": []any{int64(1), 2.5, "x", nil,
			map[string]any{"b": true}}}},
		{`'hello'.replace('l', 'LL')`, "heLLLLo"},
		{`'hello'.replace('l', '', 1)`, "helo"},
		{`object.status.phase.replace('Run', 'Jump')`, "Jumpning"},
		{`['a', 'b'].join('-') + ['a', 'b'].join()`, "a-bab"},
		{`'%s is %d'.format(['a', n])`, "a is 2"},
		{`lists.range(3)`, []any{int64(0), int64(1), int64(2)}},
		{`[3, 1, 2].sort()`, []any{int64(1), int64(2), int64(3)}},
	} {
		r, err := compile(t, e, c.expression, Any).Eval(t.Context(), vars)
		if err != nil {
			t.Errorf("%s: %v", c.expression, err)
			continue
		}
		if diff := cmp.Diff(c.want, r.Value); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.expression, diff)
		}
		if r.Cost == 0 && !strings.HasPrefix(c.expression, "{") {
			t.Errorf("%s costs nothing", c.expression)
		}
	}
}

// A result that is part of a document is not copied.
func TestResultsAreNotCopied(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"object": Any}})
	r, err := compile(t, e, "object.status", Map).Eval(t.Context(), map[string]any{"object": sample})
	if err != nil {
		t.Fatal(err)
	}
	r.Value.(map[string]any)["mark"] = true
	defer delete(sample["status"].(map[string]any), "mark")
	if sample["status"].(map[string]any)["mark"] != true {
		t.Error("the result is a copy")
	}
}

func TestMistakesAreCompileErrors(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"object": Any, "name": String}})
	for expression, want := range map[string]string{
		"object.status.":           "Syntax error",
		"absent.x":                 "undeclared reference to 'absent'",
		"name > 1":                 "found no matching overload",
		"name":                     "expected bool result, got string",
		"absent()":                 "undeclared reference to 'absent'",
		strings.Repeat("(", 10000): "recursion",
		"'" + strings.Repeat("a", maxExpression) + "' == ''": "size exceeds limit",
	} {
		_, err := e.Compile(expression, Bool)
		var wrong *CompileError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want a CompileError with %q", expression, err, want)
		}
	}
	_, err := e.Compile("object.status.phase == 'a' && absent", Bool)
	var wrong *CompileError
	if !errors.As(err, &wrong) ||
		wrong.Summary() != "ERROR: <input>:1:31: undeclared reference to 'absent' (in container '')" {
		t.Errorf("summary of %v", err)
	}
}

func TestMistakesInValuesAreEvaluationErrors(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"object": Any}})
	for expression, want := range map[string]string{
		"object.status.phase":                                                "expected bool result, got string",
		"object.status.absent == 'x'":                                        "no such key: absent",
		"object.status.conditions[7] == 'x'":                                 "index out of bounds",
		"1 / (object.metadata.generation - 3) == 1":                          "division by zero",
		"timestamp(object.status.phase) > timestamp('2026-01-01T00:00:00Z')": "invalid",
	} {
		_, err := compile(t, e, expression, Bool).Eval(t.Context(), map[string]any{"object": sample})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", expression, err, want)
		}
	}
}

// Each of these would take for ever, or all memory.
func TestExpensiveExpressionsFailCleanly(t *testing.T) {
	// The race detector makes counting ten times as slow, and time grows with
	// the square of the cost.
	e := env(t, Options{Variables: map[string]Type{"object": Any}, Cost: 20_000})
	big := make([]any, 10_000)
	for i := range big {
		big[i] = int64(i)
	}
	long := strings.Repeat("a", 3000)
	for _, expression := range []string{
		"object.list.all(a, object.list.all(b, object.list.all(c, a + b + c >= 0)))",
		"object.list.map(a, object.list.map(b, a * b)).size() > 0",
		"'" + long + "'.replace('', '" + long + "').replace('', '" + long + "').size() > 0",
		"object.list.map(a, '" + long + "').join('" + long + "').size() > 0",
		"[1].map(a, '" + long + "').map(a, a + a)" + strings.Repeat(".map(a, a + a)", 24) + ".size() > 0",
		"lists.range(1000000000).size() > 0",
		"'" + long + "'.matches('(a*)*b')" + strings.Repeat(" || '"+long+"'.matches('(a*)*b')", 19) +
			" || object.list.all(a, '" + long + "'.matches('(a*)*b') || true)",
	} {
		began := time.Now()
		p, err := e.Compile(expression, Bool)
		if err != nil {
			t.Errorf("%.60s: %v", expression, err)
			continue
		}
		_, err = p.Eval(t.Context(), map[string]any{"object": map[string]any{"list": big}})
		if err == nil {
			t.Errorf("%.60s: no error", expression)
		}
		took := time.Since(began)
		t.Logf("%.60s: %v after %v", expression, err, took)
		if took > 3*time.Minute { // for ever, more or less
			t.Errorf("%.60s: took %v", expression, took)
		}
	}
	_, err := compile(t, e, "object.list.all(a, object.list.all(b, true))", Bool).Eval(t.Context(),
		map[string]any{"object": map[string]any{"list": big}})
	if !errors.Is(err, ErrCost) || err.Error() != ErrCost.Error() {
		t.Errorf("%v is not ErrCost", err)
	}
}

func TestTheEnvironmentSetsTheCostLimit(t *testing.T) {
	vars := map[string]any{"object": sample}
	const expression = "object.status.conditions.all(c, c.type != '')"
	if _, err := compile(t, env(t, Options{Variables: map[string]Type{"object": Any}, Cost: 5}), expression, Bool).Eval(
		t.Context(), vars); !errors.Is(err, ErrCost) {
		t.Errorf("%v, want ErrCost", err)
	}
	if _, err := compile(t, env(t, Options{Variables: map[string]Type{"object": Any}, Cost: 50}), expression,
		Bool).Eval(t.Context(), vars); err != nil {
		t.Error(err)
	}
}

func TestAnEvaluationEndsWithItsContext(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"list": List}, Functions: nil, Cost: 1 << 62})
	big := make([]any, 20_000)
	for i := range big {
		big[i] = int64(i)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	began := time.Now()
	_, err := compile(t, e, "list.all(a, list.all(b, list.all(c, true)))", Bool).Eval(ctx, map[string]any{"list": big})
	if !errors.Is(err, ErrInterrupted) || !errors.Is(err, why) {
		t.Errorf("%v, want ErrInterrupted and its cause", err)
	}
	if took := time.Since(began); took > 3*time.Minute { // the list has 8e12 steps: days
		t.Errorf("took %v", took)
	}
	if _, err := compile(t, e, "true", Bool).Eval(ctx, nil); !errors.Is(err, ErrInterrupted) {
		t.Errorf("%v: an ended context evaluates nothing", err)
	}
}

func TestFunctions(t *testing.T) {
	conditions := Function{
		Name: "condition", Params: []Type{String}, Result: Any, With: []string{"resource"},
		Do: func(args []any) (any, error) {
			list, _ := args[0].(map[string]any)["conditions"].([]any)
			for _, c := range list {
				if m := c.(map[string]any); m["type"] == args[1] {
					return m, nil
				}
			}
			return map[string]any{"status": ""}, nil
		},
	}
	e := env(t, Options{
		Variables: map[string]Type{"resource": Any, "now": Timestamp},
		Functions: []Function{
			conditions,
			{Name: "now", Result: Timestamp, With: []string{"now"}, Do: func(args []any) (any, error) {
				return args[0],
					nil
			}},
			{Name: "shout", Params: []Type{String}, Result: String, Method: true, Do: func(args []any) (any, error) {
				return strings.ToUpper(args[0].(string)), nil
			}},
			{Name: "broken", Params: []Type{Any}, Result: Any, Do: func([]any) (any, error) { panic("ouch") }},
			{Name: "refuse", Params: []Type{Any}, Result: Any, Do: func(args []any) (any, error) {
				return nil,
					fmt.Errorf("not %v", args[0])
			}},
		},
	})
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	vars := map[string]any{"now": now, "resource": map[string]any{
		"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}}
	for expression, want := range map[string]any{
		`condition("Ready").status == "True"`: true,
		`condition("Other").status`:           "",
		`now() - duration("1h")`:              now.Add(-time.Hour),
		`condition("Ready").type.shout()`:     "READY",
	} {
		r, err := compile(t, e, expression, Any).Eval(t.Context(), vars)
		if err != nil || !cmp.Equal(r.Value, want) {
			t.Errorf("%s = %v, %v", expression, r.Value, err)
		}
	}
	for expression, want := range map[string]string{"broken(1)": "ouch", "refuse('x')": "not x"} {
		if _, err := compile(t, e, expression, Any).Eval(t.Context(), vars); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

// A sentinel's message decision, as its users write it.
func TestParamsAreEvaluatedInTheOrderOfTheirDependencies(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"resource": Any, "now": Timestamp}})
	p, err := e.Params([]Definition{
		{"stale", `is_reconciled && has_ref && now - timestamp(ref) > duration("30m")`},
		{"has_ref", `ref != ""`},
		{"is_reconciled", `resource.status == "True"`},
		{"ref", `resource.?updated.orValue("")`},
		{"names", `[1, 2].map(ref, ref * 2)`}, // its own ref
	})
	if err != nil {
		t.Fatal(err)
	}
	decide := compile(t, p.Env(), `stale || names == [3]`, Bool)
	now := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	for updated, want := range map[any]bool{"2026-01-01T00:00:00Z": true, "2026-01-01T00:45:00Z": false, nil: false} {
		resource := map[string]any{"status": "True"}
		if updated != nil {
			resource["updated"] = updated
		}
		vars, err := p.Eval(t.Context(), map[string]any{"resource": resource, "now": now})
		if err != nil {
			t.Fatal(err)
		}
		r, err := decide.Eval(t.Context(), vars)
		if err != nil || r.Value != want {
			t.Errorf("updated %v: %v, %v", updated, r.Value, err)
		}
	}
	if _, err := p.Eval(t.Context(), map[string]any{"resource": map[string]any{}, "now": now}); err == nil ||
		!strings.Contains(err.Error(), "is_reconciled: ") {
		t.Errorf("%v does not name what failed", err)
	}
	for want, defs := range map[string][]Definition{
		"a, b: they depend on each other in a circle": {{"a", "b"}, {"c", "1"}, {"b", "a"}},
		"resource: the name is taken":                 {{"resource", "1"}},
		"a: the name is taken":                        {{"a", "1"}, {"a", "2"}},
		"undeclared reference to 'absent'":            {{"a", "absent"}},
		"Syntax error":                                {{"a", "1 +"}},
	} {
		if _, err := e.Params(defs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// One program serves many goroutines.
func TestProgramsAreSafeForConcurrentUse(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"n": Int}})
	p := compile(t, e, "[1, 2, 3].map(x, x * n).exists(x, x == n)", Bool)
	failed := make(chan error, 8)
	for range cap(failed) {
		go func() {
			var bad error
			for i := range 200 {
				if r, err := p.Eval(context.Background(), map[string]any{"n": int64(i)}); err != nil ||
					r.Value != true {
					bad = fmt.Errorf("%v, %w", r.Value, err)
				}
			}
			failed <- bad
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// Whatever the text, compiling and evaluating end without a panic.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		"object.status.phase == 'Running'", "has(object.a.b)", "object.?a.orValue(1)",
		"object.status.conditions.filter(c, c.type == 'Ready')[0]",
		"'a'.replace('', 'b').matches('(a*)*')", "[1, 2].join(',')", "{'a': [1]}.a", "lists.range(10).map(x, x / 0)",
		"b'abc' + b'd'", "'\\u00e9'.charAt(0)",
		"timestamp('2026-01-01T00:00:00Z').getHours()", "object == object", "now", "[[1]].flatten()", "optional.of(1)",
		"type(object)",
	} {
		f.Add(s)
	}
	e := env(f, Options{Variables: map[string]Type{"object": Any}, Cost: 10_000})
	f.Fuzz(func(t *testing.T, expression string) {
		late := time.AfterFunc(2*time.Minute, func() { panic(fmt.Sprintf("%q takes too long", expression)) })
		defer late.Stop()
		p, err := e.Compile(expression, Any)
		if err != nil {
			return
		}
		before := fmt.Sprint(sample)
		_, err = p.Eval(t.Context(), map[string]any{"object": sample})
		if err != nil && strings.Contains(err.Error(), "rules: internal error") {
			t.Error(err)
		}
		if fmt.Sprint(sample) != before {
			t.Error("the document changed")
		}
	})
}
