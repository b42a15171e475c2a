package search

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SQL returns the filter as a condition in SQL; an empty Fragment when every row matches.
func (f *Filter) SQL() Fragment {
	if f.root == nil {
		return Fragment{}
	}
	r := &renderer{memberArgs: map[string]string{}}
	f.root.render(r, positive)
	return Fragment{SQL: r.b.String(), Args: r.args}
}

// renderer writes SQL. Names and values of the search text become arguments, with bindArg; they are
// never part of the SQL.
type renderer struct {
	b          strings.Builder
	args       []any
	memberArgs map[string]string // placeholders by the name of a JSON member
}

// bindArg adds an argument and returns its placeholder with its SQL type: $3::text.
func (r *renderer) bindArg(v any, as string) string {
	r.args = append(r.args, v)
	return "$" + strconv.Itoa(len(r.args)) + "::" + as
}

// memberArg returns the placeholder for the name of a JSON member. It adds one argument for each
// name.
func (r *renderer) memberArg(key string) string {
	at, ok := r.memberArgs[key]
	if !ok {
		at = r.bindArg(key, "text")
		r.memberArgs[key] = at
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

func (n boundLogic) render(r *renderer, p polarity) {
	word := " and "
	if n.or {
		word = " or "
	}
	r.write("(")
	for i, t := range n.terms {
		if i > 0 {
			r.write(word)
		}
		t.render(r, p)
	}
	r.write(")")
}

func (n boundNot) render(r *renderer, p polarity) {
	r.write("not (")
	n.term.render(r, negated)
	r.write(")")
}

func (n boundCompare) render(r *renderer, p polarity) {
	if object, key, ok := stringMember(n.left); ok && n.op == "=" && p == positive {
		if c, ok := n.right.(constant); ok {
			r.writePair(object, key, []any{c.value})
			return
		}
	}
	if f, ok := n.left.(fieldRef); ok && n.op == "=" && p == positive && f.definition.Equal != "" {
		if c, ok := n.right.(constant); ok {
			r.writeEqual(f.definition, []any{c.value})
			return
		}
	}
	left, right := n.left.sql(r), n.right.sql(r)
	if n.left.typeOf() == Text && n.op != "=" && n.op != "<>" {
		left += ` collate "C"` // by bytes, whatever the database's locale
	}
	r.write(left, " ", n.op, " ", right)
}

// maxAlternatives bounds the values of "in" for which PostgreSQL searches an index once for each
// value. For more values one comparison with an array is quicker.
const maxAlternatives = 16

func (n boundIn) render(r *renderer, p polarity) {
	if p == positive && !n.not && 0 < len(n.list) && len(n.list) <= maxAlternatives {
		if object, key, ok := stringMember(n.left); ok {
			r.writePair(object, key, n.list)
			return
		}
		if f, ok := n.left.(fieldRef); ok && f.definition.Equal != "" {
			r.writeEqual(f.definition, n.list)
			return
		}
	}
	op := " = any("
	if n.not {
		op = " <> all("
	}
	r.write(n.left.sql(r), op, r.bindArg(sqlArray(n.elemType, n.list), sqlTypes[n.elemType]+"[]"), ")")
}

// stringMember reports whether an expression is a member of an object whose values are all strings
// (Field.StringMaps), and returns that object and the member's name.
func stringMember(x expr) (object fieldRef, key string, ok bool) {
	r, ok := x.(fieldRef)
	if !ok || r.typ != Text || len(r.path) == 0 {
		return r, "", false
	}
	last := len(r.path) - 1
	for _, m := range r.definition.StringMaps {
		if slices.Equal(m, r.path[:last]) {
			object = r
			object.path, object.typ = r.path[:last], JSON
			return object, r.path[last], true
		}
	}
	return r, "", false
}

// writePair writes the condition that the member key of an object of strings has one of the values,
// in a form that a GIN index serves. The condition is false when the object has no such member,
// where a comparison would be null; both exclude the row when the polarity is positive.
func (r *renderer) writePair(object fieldRef, key string, values []any) {
	r.write("(")
	for i, v := range values {
		if i > 0 {
			r.write(" or ")
		}
		if pair, ok := pairText(key, v); ok && object.definition.Pairs {
			r.writePairs(object, []string{pair})
			continue
		}
		doc, err := json.Marshal(map[string]any{key: v})
		if err != nil {
			panic("search: a pair of strings: " + err.Error())
		}
		r.write(object.sql(r), " @> ", r.bindArg(string(doc), "jsonb"))
	}
	r.write(")")
}

// writePairs writes the condition that an object of strings has all pairs.
func (r *renderer) writePairs(object fieldRef, pairs []string) {
	r.write(PairsSQL(object.sql(r)), " @> ", r.bindArg(pairs, "text[]"))
}

// writeEqual writes the condition that a field equals one of the values, with Field.Equal.
func (r *renderer) writeEqual(f Field, values []any) {
	r.write("(")
	for i, v := range values {
		if i > 0 {
			r.write(" or ")
		}
		r.write(fmt.Sprintf(f.Equal, r.bindArg(v, "text")))
	}
	r.write(")")
}

// sqlArray converts a list of values of one type to a slice of that type, which the database driver
// needs.
func sqlArray(kind Type, list []any) any {
	switch kind {
	case Int:
		return convertList[int64](list)
	case float:
		return convertList[float64](list)
	case Time:
		return convertList[time.Time](list)
	case Bool:
		return convertList[bool](list)
	}
	return convertList[string](list)
}

func convertList[T any](list []any) []T {
	out := make([]T, len(list))
	for i, v := range list {
		out[i] = v.(T)
	}
	return out
}

func (n boundNull) render(r *renderer, p polarity) {
	r.write(n.operand.sql(r), " is ")
	if n.not {
		r.write("not ")
	}
	r.write("null")
}

func (n boundPattern) render(r *renderer, p polarity) {
	r.write(n.left.sql(r), ` collate "C" `, n.op, " ", r.bindArg(n.pattern, "text"))
}

func (n boundContains) render(r *renderer, p polarity) {
	if object, ok := n.left.(fieldRef); ok && p == positive && object.definition.Pairs && object.isStringMap() {
		if pairs, ok := pairTexts(n.value); ok {
			r.writePairs(object, pairs)
			return
		}
	}
	r.write(n.left.sql(r), " @> ", r.bindArg(n.text, "jsonb"))
}

func (x fieldRef) sql(r *renderer) string {
	text := "(" + x.definition.SQL + ")"
	for i, key := range x.path {
		arrow := "->"
		if x.typ == Text && i == len(x.path)-1 {
			arrow = "->>"
		}
		text += arrow + r.memberArg(key)
	}
	if len(x.path) == 0 {
		return text
	}
	switch text = "(" + text + ")"; x.typ {
	case float:
		return "(case when jsonb_typeof" + text + " = 'number' then " + text + "::float8 end)"
	case Bool:
		return "(case when jsonb_typeof" + text + " = 'boolean' then " + text + "::boolean end)"
	}
	return text
}

func (x constant) sql(r *renderer) string {
	v := x.value
	if d, ok := v.(jsonConstant); ok {
		v = d.text
	}
	return r.bindArg(v, sqlTypes[x.typ])
}

func (x calculation) sql(r *renderer) string {
	side := func(x expr) string { return "(" + x.sql(r) + ")::float8" }
	left := side(x.left)
	switch x.op {
	case conversion:
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
