package search

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Empty reports that each row matches.
func (f *Filter) Empty() bool { return f.root == nil }

// SQL renders the filter; "" when everything matches.
func (f *Filter) SQL() Fragment {
	if f.root == nil {
		return Fragment{}
	}
	r := &renderer{known: map[string]string{}}
	f.root.render(r, false)
	return Fragment{SQL: r.b.String(), Args: r.args}
}

// renderer writes SQL. Everything that comes from the text goes through arg.
type renderer struct {
	b     strings.Builder
	args  []any
	known map[string]string // the arguments of names of members, which a search repeats
}

// arg binds a value and returns its place, with its type.
func (r *renderer) arg(v any, as string) string {
	r.args = append(r.args, v)
	return "$" + strconv.Itoa(len(r.args)) + "::" + as
}

// member returns the argument for the name of a member; the same name has one argument.
func (r *renderer) member(key string) string {
	at, ok := r.known[key]
	if !ok {
		at = r.arg(key, "text")
		r.known[key] = at
	}
	return at
}

func (r *renderer) write(parts ...string) {
	for _, p := range parts {
		r.b.WriteString(p)
	}
}

var sqlTypes = map[Type]string{Text: "text", Int: "bigint", float: "float8", Time: "timestamptz", Bool: "boolean",
	JSON: "jsonb"}

func (n boundLogic) render(r *renderer, negated bool) {
	word := " and "
	if n.or {
		word = " or "
	}
	r.write("(")
	for i, t := range n.terms {
		if i > 0 {
			r.write(word)
		}
		t.render(r, negated)
	}
	r.write(")")
}

func (n boundNot) render(r *renderer, negated bool) {
	r.write("not (")
	n.of.render(r, true)
	r.write(")")
}

func (n boundCompare) render(r *renderer, negated bool) {
	if object, key, ok := member(n.left); ok && n.op == "=" && !negated {
		if c, ok := n.right.(constant); ok {
			r.pair(object, key, []any{c.v})
			return
		}
	}
	if f, ok := n.left.(ref); ok && n.op == "=" && !negated && f.def.Equal != "" {
		if c, ok := n.right.(constant); ok {
			r.equal(f.def, []any{c.v})
			return
		}
	}
	left, right := n.left.sql(r), n.right.sql(r)
	if n.left.kind() == Text && n.op != "=" && n.op != "<>" {
		left += ` collate "C"` // by bytes, whatever the database's locale
	}
	r.write(left, " ", n.op, " ", right)
}

func (n boundIn) render(r *renderer, negated bool) {
	if object, key, ok := member(n.of); ok && !n.not && !negated && 0 < len(n.list) && len(n.list) <= 16 {
		r.pair(object, key, n.list)
		return
	}
	if f, ok := n.of.(ref); ok && !n.not && !negated && f.def.Equal != "" && 0 < len(n.list) && len(n.list) <= 16 {
		r.equal(f.def, n.list)
		return
	}
	op := " = any("
	if n.not {
		op = " <> all("
	}
	r.write(n.of.sql(r), op, r.arg(array(n.kind, n.list), sqlTypes[n.kind]+"[]"), ")")
}

// member recognises a member of an object whose values are all strings.
func member(x expr) (object ref, key string, ok bool) {
	r, ok := x.(ref)
	if !ok || r.as != Text || len(r.path) == 0 {
		return r, "", false
	}
	last := len(r.path) - 1
	for _, m := range r.def.StringMaps {
		if slices.Equal(m, r.path[:last]) {
			object = r
			object.path, object.as = r.path[:last], JSON
			return object, r.path[last], true
		}
	}
	return r, "", false
}

// pair writes the condition that an object of strings has one of the values
// under key, in the form that a GIN index serves. It is false without the key,
// where a comparison would be null; without negation both exclude the row.
func (r *renderer) pair(object ref, key string, values []any) {
	r.write("(")
	for i, v := range values {
		if i > 0 {
			r.write(" or ")
		}
		doc, err := json.Marshal(map[string]any{key: v})
		if err != nil {
			panic("search: a pair of strings: " + err.Error())
		}
		r.write(object.sql(r), " @> ", r.arg(string(doc), "jsonb"))
	}
	r.write(")")
}

// equal writes the condition that a field equals one of the values, by
// Field.Equal.
func (r *renderer) equal(f Field, values []any) {
	r.write("(")
	for i, v := range values {
		if i > 0 {
			r.write(" or ")
		}
		r.write(fmt.Sprintf(f.Equal, r.arg(v, "text")))
	}
	r.write(")")
}

// array converts a list to a slice of its type, which the driver needs.
func array(kind Type, list []any) any {
	switch kind {
	case Int:
		return typed[int64](list)
	case float:
		return typed[float64](list)
	case Time:
		return typed[time.Time](list)
	case Bool:
		return typed[bool](list)
	}
	return typed[string](list)
}

func typed[T any](list []any) []T {
	out := make([]T, len(list))
	for i, v := range list {
		out[i] = v.(T)
	}
	return out
}

func (n boundNull) render(r *renderer, negated bool) {
	r.write(n.of.sql(r), " is ")
	if n.not {
		r.write("not ")
	}
	r.write("null")
}

func (n boundPattern) render(r *renderer, negated bool) {
	r.write(n.of.sql(r), ` collate "C" `, n.op, " ", r.arg(n.pattern, "text"))
}

func (n boundContains) render(r *renderer, negated bool) {
	r.write(n.of.sql(r), " @> ", r.arg(n.doc, "jsonb"))
}

func (x ref) sql(r *renderer) string {
	text := "(" + x.def.SQL + ")"
	for i, key := range x.path {
		arrow := "->"
		if x.as == Text && i == len(x.path)-1 {
			arrow = "->>"
		}
		text += arrow + r.member(key)
	}
	if len(x.path) == 0 {
		return text
	}
	switch text = "(" + text + ")"; x.as {
	case float:
		return "(case when jsonb_typeof" + text + " = 'number' then " + text + "::float8 end)"
	case Bool:
		return "(case when jsonb_typeof" + text + " = 'boolean' then " + text + "::boolean end)"
	}
	return text
}

func (x constant) sql(r *renderer) string {
	v := x.v
	if d, ok := v.(document); ok {
		v = d.text
	}
	return r.arg(v, sqlTypes[x.as])
}

func (x calc) sql(r *renderer) string {
	side := func(x expr) string { return "(" + x.sql(r) + ")::float8" }
	left := side(x.left)
	switch x.op {
	case ' ':
		return "(" + left + ")"
	case '/':
		quotient := "(" + left + " / nullif(" + side(x.right) + ", 0))"
		if x.whole {
			return "trunc" + quotient
		}
		return quotient
	case '%':
		return "(mod((" + left + ")::numeric, nullif(" + side(x.right) + ", 0)::numeric)::float8)"
	}
	return "(" + left + " " + string(x.op) + " " + side(x.right) + ")"
}
