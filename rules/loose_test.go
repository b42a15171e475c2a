package rules

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLooseExpressionsCompile(t *testing.T) {
	e := env(t, Options{Variables: map[string]Type{"object": Any, "n": Int}, Functions: []Function{
		{Name: "stamp", Result: String, Do: func([]any) (any, error) { return "now", nil }},
	}})
	vars := map[string]any{"object": sample, "n": int64(2), "free": map[string]any{"count": int64(3)}}
	for _, c := range []struct {
		expression string
		want       any
		undeclared []string
	}{
		{`n > 1 ? "a" : 1`, "a", nil},
		{`n > 2 ? "a" : null`, nil, nil},
		{`"a" == 1`, false, nil},
		{`free.count * 1.5`, 4.5, []string{"free"}},
		{`1.5 + n`, 3.5, nil},
		{`"x" + "y"`, "xy", nil},
		{`free.count + 1`, int64(4), []string{"free"}},
		{`lists.range(2)`, []any{int64(0), int64(1)}, nil},
		{`optional.none().orValue("none")`, "none", nil},
		{
			`object.status.conditions.filter(c, c.type == "Ready").size() > 0 ? object.status.conditions.filter(c, ` +
				`c.type == "Ready")[0].status : "Unknown"`, "True", nil},
		{`free.?absent.?deep.orValue("d")`, "d", []string{"free"}},
		{`stamp() + "!"`, "now!", nil},
		{`type(n) == int`, true, nil},
		{`(n == 2 ? [1] : "x") == [1]`, true, nil},
	} {
		p, undeclared, err := e.CompileLoose(c.expression)
		if err != nil {
			t.Errorf("%s: %v", c.expression, err)
			continue
		}
		if !slices.Equal(undeclared, c.undeclared) {
			t.Errorf("%s: undeclared %q, want %q", c.expression, undeclared, c.undeclared)
		}
		r, err := p.Eval(t.Context(), vars)
		if diff := cmp.Diff(c.want, r.Value); err != nil || diff != "" {
			t.Errorf("%s: %v %s", c.expression, err, diff)
		}
	}
	for expression, want := range map[string]string{"a.": "Syntax error",
		"absent()": "undeclared reference to 'absent'", "1 + 'a'": "no matching overload"} {
		var wrong *CompileError
		if _, _, err := e.CompileLoose(expression); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func TestAMissingVariableIsAnEvaluationError(t *testing.T) {
	p, undeclared, err := env(t, Options{}).CompileLoose("nobody.knows == 1")
	if err != nil || !slices.Equal(undeclared, []string{"nobody"}) {
		t.Fatal(undeclared, err)
	}
	if _, err := p.Eval(t.Context(), map[string]any{}); err == nil || !strings.Contains(err.Error(),
		"no such attribute") {
		t.Error(err)
	}
}

// An expensive expression ends, loose or not.
func TestLooseExpressionsHaveTheCostLimit(t *testing.T) {
	p, _, err := env(t, Options{Cost: 1000}).CompileLoose(
		"lists.range(100).all(a, lists.range(100).all(b, a + b >= 0 ? true : 1 == 'x'))")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Eval(t.Context(), map[string]any{}); !errors.Is(err, ErrCost) {
		t.Error(err)
	}
}
