package rules

import (
	"slices"
	"testing"
)

func TestReadsListsTheMembersOfAnExpression(t *testing.T) {
	lookup := Function{Name: "lookup", Params: []Type{String}, Result: Any, With: []string{"a"},
		Do: func(args []any) (any, error) { return args[0].(map[string]any)[args[1].(string)], nil }}
	e := env(t, Options{Variables: map[string]Type{"a": Any, "b": Any, "name": String}, Functions: []Function{lookup}})
	for text, want := range map[string]Reads{
		`a.x.y == b.z`:                             Members("x"),
		`a.?x.orValue(1) == a["y"]`:                Members("x", "y"),
		`a[?"x"].hasValue()`:                       Members("x"),
		`has(a.x) && lookup("y") == 1`:             Members("x", "y"),
		`lookup(name) == 1`:                        {All: true},
		`a[name] == 1`:                             {All: true},
		`a.x.exists(c, c == a.y)`:                  Members("x", "y"),
		`a.exists(k, a[k] == 1)`:                   {All: true},
		`dyn(a).x == 1`:                            {All: true},
		`[a].size() == 1`:                          {All: true},
		`{"k": a.x, a.y: 1}.size() == lookup(b.z)`: {All: true, members: Members("x", "y").members},
		`b.a.x`:                   {},
		`[1].exists(a, .a.x > a)`: {All: true, members: Members("x").members}, // a of the comprehension counts, too
	} {
		got := compile(t, e, text, Any).Reads("a", "lookup")
		if got.All != want.All || !slices.Equal(got.Names(), want.Names()) {
			t.Errorf("%s: %v %v", text, got.All, got.Names())
		}
	}
	p := compile(t, e, `[1].exists(b, b == a.x)`, Any)
	if !p.Uses("a") || p.Uses("b") {
		t.Error("Uses counts a variable of a comprehension, or misses one")
	}
	if !compile(t, e, `[1].exists(a, .a.x > 0)`, Any).Uses("a") {
		t.Error("Uses misses a variable that one of a comprehension would hide")
	}
}
