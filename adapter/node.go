package adapter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"atoll.dev/internal/strictyaml"
)

// node is a part of a document that is built.
type node interface {
	build(ctx context.Context, in frame) (any, error)
}

// frame has the variables from which a document is built.
type frame struct {
	vars map[string]any
	// warn is called for an expression that failed and whose value is null or its default.
	warn func(e *expr, err error)
}

// grammar selects the mappings of a document that are expressions or values, not plain mappings.
type grammar int

const (
	// templates is that of manifests: strings are templates.
	templates grammar = iota
	// definitions is that of payloads: {expression} and {field} are computed besides.
	definitions
	// reportValues is that of standard reports: {feedback} and {since} are computed besides.
	reportValues
)

type (
	literal struct{ value any }
	text    struct{ *tmpl }
	list    []node
	object  []entry
	entry   struct {
		key   *tmpl
		value node
	}
	// computed is a value definition with an expression or a field.
	computed struct {
		expr     *expr
		field    *field
		fallback Value // its default
		grammar  grammar
	}
)

func (n literal) build(context.Context, frame) (any, error) { return n.value, nil }

func (n text) build(_ context.Context, in frame) (any, error) { return n.render(in.vars) }

func (n list) build(ctx context.Context, in frame) (any, error) {
	out := make([]any, len(n))
	for i, x := range n {
		v, err := x.build(ctx, in)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (n object) build(ctx context.Context, in frame) (any, error) {
	out := make(map[string]any, len(n))
	for _, e := range n {
		key, err := e.key.render(in.vars)
		if err != nil {
			return nil, err
		}
		if out[key], err = e.value.build(ctx, in); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// build evaluates the definition. The default stands for null, for a field that is not there, and
// for an expression that fails (substitute). In a report, absence without a default is an error,
// too.
func (n computed) build(ctx context.Context, in frame) (v any, err error) {
	if n.expr != nil {
		v, err = n.expr.eval(ctx, in.vars)
		if err != nil && (n.grammar != reportValues || n.fallback.Set()) {
			return substitute(n.expr, n.fallback, err, in.warn)
		}
	} else {
		v, err = n.field.find(in.vars)
		if errors.Is(err, errNotFound) && (n.grammar != reportValues || n.fallback.Set()) {
			return n.fallback.Value, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if v == nil {
		v = n.fallback.Value
	}
	return jsonable(v), nil
}

// jsonable writes times as texts.
func jsonable(v any) any {
	switch v := v.(type) {
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case time.Duration:
		return v.String()
	}
	return v
}

// compileDocument compiles a value. A mapping at its top is a mapping in every grammar.
func (c *compiler) compileDocument(v Value, g grammar) node {
	if m, ok := v.Value.(map[string]any); ok {
		return c.compileMapping(v, m, "", g)
	}
	return c.compileNode(v, v.Value, "", g)
}

// placeIn is the place of a part of a value.
func (v Value) placeIn(path string) Place {
	place := v.Place
	if line, ok := v.Lines[path]; ok {
		place.Line = line
	}
	if path != "" {
		place.Path = strictyaml.Join(place.Path, path)
	}
	return place
}

func (c *compiler) compileNode(v Value, at any, path string, g grammar) node {
	switch at := at.(type) {
	case string:
		return text{c.compileTemplate(Text{at, v.placeIn(path)})}
	case []any:
		out := make(list, len(at))
		for i, x := range at {
			out[i] = c.compileNode(v, x, fmt.Sprintf("%s[%d]", path, i), g)
		}
		return out
	case map[string]any:
		if n, is := c.compileDefinition(v, at, path, g); is {
			return n
		}
		return c.compileMapping(v, at, path, g)
	}
	return literal{at}
}

func (c *compiler) compileMapping(v Value, m map[string]any, path string, g grammar) node {
	var out object
	for _, key := range sortedKeys(m) {
		name := c.compileTemplate(Text{key, v.placeIn(path)})
		out = append(out, entry{name, c.compileNode(v, m[key], strictyaml.Join(path, key), g)})
	}
	return out
}

// compileDefinition compiles a mapping that is computed: {expression, default}, {field, default}, and in
// reports {feedback, default} and {since}.
func (c *compiler) compileDefinition(v Value, m map[string]any, path string, g grammar) (node, bool) {
	if g == templates {
		return nil, false
	}
	place := v.placeIn(path)
	n := computed{grammar: g}
	if absent, there := m["default"]; there {
		n.fallback = Value{Value: absent, Place: place}
	}
	var used []string
	var t Text
	for _, key := range []string{"expression", "field", "feedback", "since"} {
		value, _ := m[key].(string)
		if value == "" || g != reportValues && (key == "feedback" || key == "since") {
			continue
		}
		used, t = append(used, key), Text{value, place}
		t.Place.Line = v.placeIn(strictyaml.Join(path, key)).Line
	}
	switch {
	case len(used) == 0:
		return nil, false
	case len(used) > 1:
		c.fail(place, strings.Join(used, " and ")+" exclude each other")
		return literal{}, true
	}
	for _, key := range sortedKeys(m) {
		if key != used[0] && (key != "default" || used[0] == "since") {
			c.warn(place, "%q beside an expression or a field is ignored", key)
		}
	}
	switch used[0] {
	case "expression":
		n.expr = c.compileExpr(t)
		return n, true
	case "field":
		n.field = c.compileField(t)
		return n, true
	case "feedback":
		return c.compileFeedback(t, path, n.fallback), true
	}
	return firstSeen{c.compileExpr(t), c.dataPath(t.Place, path), c.now}, true
}
