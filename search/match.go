package search

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"atoll.dev/internal/jsonvalue"
)

// Match reports whether a row matches the filter, with the result that
// PostgreSQL has for SQL. row returns the value of a field by its name: a
// string, int64, time.Time or bool by the field's type, or a json.RawMessage for
// JSON; nil is null.
func (f *Filter) Match(row func(field string) any) bool {
	return f.root == nil || f.root.eval(&evaluation{row: row, docs: map[string]any{}}) == yes
}

// truth is a truth value of SQL: no, unknown or yes.
type truth int

const (
	no truth = iota
	unknown
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

type evaluation struct {
	row  func(string) any
	docs map[string]any // JSON fields, read once
}

// null is a JSON null, which is not SQL's.
type null struct{}

func (n boundLogic) eval(e *evaluation) truth {
	result := yes
	if n.or {
		result = no
	}
	for _, t := range n.terms {
		if v := t.eval(e); n.or {
			result = max(result, v)
		} else {
			result = min(result, v)
		}
	}
	return result
}

func (n boundNot) eval(e *evaluation) truth { return yes - n.of.eval(e) }

func (n boundCompare) eval(e *evaluation) truth {
	l, r := n.left.value(e), n.right.value(e)
	if l == nil || r == nil {
		return unknown
	}
	if d, ok := r.(document); ok {
		return truthOf(jsonvalue.Equal(l, d.val) == (n.op == "="))
	}
	if n.left.kind() == JSON {
		return truthOf(jsonvalue.Equal(l, r) == (n.op == "="))
	}
	c := compare(l, r)
	switch n.op {
	case "=":
		return truthOf(c == 0)
	case "<>":
		return truthOf(c != 0)
	case "<":
		return truthOf(c < 0)
	case "<=":
		return truthOf(c <= 0)
	case ">":
		return truthOf(c > 0)
	}
	return truthOf(c >= 0)
}

// compare compares two values of one type.
func compare(l, r any) int {
	switch l := l.(type) {
	case string:
		return strings.Compare(l, r.(string))
	case int64:
		return cmp.Compare(l, r.(int64))
	case float64:
		return cmp.Compare(l, r.(float64))
	case time.Time:
		return l.Compare(r.(time.Time))
	case bool:
		if l == r.(bool) {
			return 0
		}
		return 1 // only equality is asked for
	}
	panic("search: a value of no type")
}

func (n boundIn) eval(e *evaluation) truth {
	if len(n.list) == 0 {
		return truthOf(n.not)
	}
	v := n.of.value(e)
	if v == nil {
		return unknown
	}
	for _, w := range n.list {
		if compare(v, w) == 0 {
			return truthOf(!n.not)
		}
	}
	return truthOf(n.not)
}

func (n boundNull) eval(e *evaluation) truth { return truthOf((n.of.value(e) == nil) != n.not) }

func (n boundPattern) eval(e *evaluation) truth {
	v, ok := n.of.value(e).(string)
	if !ok {
		return unknown
	}
	switch n.op {
	case "like":
		return truthOf(like(v, n.pattern))
	case "ilike":
		return truthOf(like(lower(v), lower(n.pattern)))
	}
	re, err := regexp.Compile("(?s)" + n.pattern)
	return truthOf(err == nil && re.MatchString(v))
}

func (n boundContains) eval(e *evaluation) truth {
	v := n.of.value(e)
	if v == nil {
		return unknown
	}
	return truthOf(contains(v, n.val))
}

func (x ref) value(e *evaluation) any {
	if x.def.Type != JSON {
		v := e.row(x.field)
		if t, ok := v.(time.Time); ok {
			return t.Truncate(time.Microsecond)
		}
		return v
	}
	doc, ok := e.docs[x.field]
	if !ok {
		if raw, _ := e.row(x.field).(json.RawMessage); raw != nil {
			doc = decode(raw)
		}
		e.docs[x.field] = doc
	}
	for _, key := range x.path {
		object, ok := doc.(map[string]any)
		if !ok {
			return nil
		}
		if doc, ok = object[key]; !ok {
			return nil
		}
	}
	if len(x.path) == 0 {
		return doc
	}
	switch x.as {
	case Text:
		return jsonText(doc)
	case float:
		if n, ok := doc.(json.Number); ok {
			f, _ := n.Float64()
			return f
		}
		return nil
	case Bool:
		if b, ok := doc.(bool); ok {
			return b
		}
		return nil
	}
	return doc
}

func (x constant) value(*evaluation) any { return x.v }

func (x calc) value(e *evaluation) any {
	side := func(x expr) (float64, bool) {
		switch v := x.value(e).(type) {
		case float64:
			return v, true
		case int64:
			return float64(v), true
		}
		return 0, false
	}
	l, ok := side(x.left)
	if !ok || x.op == ' ' {
		if !ok {
			return nil
		}
		return l
	}
	r, ok := side(x.right)
	if !ok {
		return nil
	}
	switch x.op {
	case '+':
		return float64(l + r)
	case '-':
		return float64(l - r)
	case '*':
		return float64(l * r)
	}
	if r == 0 {
		return nil // where SQL would fail the whole search
	}
	if x.op == '%' {
		return math.Mod(l, r)
	}
	if q := float64(l / r); x.whole {
		return math.Trunc(q)
	} else {
		return q
	}
}

// decode reads JSON that is known to be well-formed. A null in it is null{}.
func decode(raw json.RawMessage) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	return withNulls(v)
}

func withNulls(v any) any {
	switch v := v.(type) {
	case nil:
		return null{}
	case map[string]any:
		for k, w := range v {
			v[k] = withNulls(w)
		}
	case []any:
		for i, w := range v {
			v[i] = withNulls(w)
		}
	}
	return v
}

// jsonText returns the result of ->> for a value; nil for a null.
func jsonText(v any) any {
	switch v := v.(type) {
	case null:
		return nil
	case string:
		return v
	}
	var b strings.Builder
	writeJSON(&b, v)
	return b.String()
}

// writeJSON writes a value in the form of jsonb's text: shorter keys first, with
// spaces.
func writeJSON(b *strings.Builder, v any) {
	switch v := v.(type) {
	case null:
		b.WriteString("null")
	case bool:
		if v {
			b.WriteString("true")
		} else {
			b.WriteString("false")
		}
	case json.Number:
		b.WriteString(plain(v.String()))
	case string:
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v) // a string has no error
		b.WriteString(strings.TrimSuffix(text.String(), "\n"))
	case []any:
		b.WriteByte('[')
		for i, w := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSON(b, w)
		}
		b.WriteByte(']')
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
		b.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSON(b, k)
			b.WriteString(": ")
			writeJSON(b, v[k])
		}
		b.WriteByte('}')
	}
}

// plain writes a number without an exponent, as PostgreSQL does.
func plain(n string) string {
	mantissa, exponent, ok := strings.Cut(strings.ToLower(n), "e")
	if !ok {
		return n
	}
	r, ok := new(big.Rat).SetString(n)
	var shift int64
	if e, eok := new(big.Int).SetString(exponent, 10); eok {
		shift = e.Int64()
	}
	if !ok {
		return n
	}
	_, decimals, _ := strings.Cut(mantissa, ".")
	return r.FloatString(max(0, len(decimals)-int(shift)))
}

// contains is jsonb's @>: every member and element of b has one in a that
// contains it. An array contains a value that is one of its elements.
func contains(a, b any) bool {
	if list, ok := a.([]any); ok {
		switch b.(type) {
		case []any, map[string]any:
		default:
			return slices.ContainsFunc(list, func(x any) bool { return jsonvalue.Equal(x, b) })
		}
	}
	return within(a, b)
}

func within(a, b any) bool {
	switch b := b.(type) {
	case map[string]any:
		a, ok := a.(map[string]any)
		if !ok {
			return false
		}
		for k, w := range b {
			if v, ok := a[k]; !ok || !within(v, w) {
				return false
			}
		}
		return true
	case []any:
		a, ok := a.([]any)
		if !ok {
			return false
		}
		for _, w := range b {
			if !slices.ContainsFunc(a, func(v any) bool { return within(v, w) }) {
				return false
			}
		}
		return true
	}
	return jsonvalue.Equal(a, b)
}
