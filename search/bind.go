package search

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"atoll.dev/internal/rest"
)

// Types that only bound expressions have.
const (
	float   Type = iota + 100 // float8
	dynamic                   // a JSON value whose type the other side decides
)

// Bind checks a query against a schema. Its errors are *Error.
func (q *Query) Bind(s Schema) (f *Filter, err error) {
	defer func() {
		if r := recover(); r != nil {
			fail, ok := r.(failure)
			if !ok {
				panic(r)
			}
			f, err = nil, fail.err
		}
	}()
	if q.root == nil {
		return &Filter{}, nil
	}
	b := &binder{query: q, schema: s}
	b.allowed(q.root, false)
	return &Filter{root: b.bind(q.root)}, nil
}

type binder struct {
	query  *Query
	schema Schema
	terms  int
	sums   int // arithmetic operations in the comparison at hand
}

func (b *binder) fail(pos int, format string, args ...any) {
	panic(failure{b.query.errorf(pos, format, args...)})
}

func (b *binder) bind(n node) bound {
	switch n := n.(type) {
	case logic:
		terms := b.fold(n)
		if len(terms) == 1 {
			return b.bind(terms[0])
		}
		l := boundLogic{or: n.or, terms: make([]bound, len(terms))}
		for i, t := range terms {
			l.terms[i] = b.bind(t)
		}
		return l
	case negation:
		return boundNot{b.bind(n.of)}
	}
	if b.terms++; b.terms > b.query.limits.Terms {
		b.fail(n.at(), "more than %d comparisons", b.query.limits.Terms)
	}
	b.sums = 0
	switch n := n.(type) {
	case comparison:
		return b.comparison(n)
	case membership:
		return b.membership(n)
	case span:
		low := b.comparison(comparison{pos: n.pos, op: ">=", left: n.of, right: n.low})
		high := b.comparison(comparison{pos: n.pos, op: "<=", left: n.of, right: n.high})
		both := boundLogic{terms: []bound{low, high}}
		if n.not {
			return boundNot{both}
		}
		return both
	case nullness:
		of := b.expr(n.of)
		if _, ok := of.(constant); ok {
			b.fail(n.pos, "a value is never null; name a field")
		}
		if r, ok := of.(ref); ok && r.as == dynamic {
			r.as = Text
			of = r
		}
		return boundNull{not: n.not, of: of}
	}
	panic(fmt.Sprintf("search: a %T", n))
}

// fold replaces all "field = value" that an "or" joins by one membership, and
// all "field <> value" that an "and" joins: clients list hundreds of consumers
// in this form.
func (b *binder) fold(n logic) []node {
	wanted := "<>"
	if n.or {
		wanted = "="
	}
	var out []node
	at := map[string]int{}
	for _, t := range n.terms {
		c, ok := t.(comparison)
		field, isName := c.left.(name)
		value, isLiteral := c.right.(literal)
		if !ok || c.op != wanted || !isName || !isLiteral || b.ref(field).kind() == JSON {
			out = append(out, t)
			continue
		}
		key := fmt.Sprintf("%q %q %v %d", field.parts, field.path, field.text, value.kind)
		i, known := at[key]
		if !known {
			at[key] = len(out)
			out = append(out, t)
			continue
		}
		m, ok := out[i].(membership)
		if !ok {
			first := out[i].(comparison)
			m = membership{pos: first.pos, not: !n.or, of: first.left, list: []literal{first.right.(literal)}}
		}
		m.list = append(m.list, value)
		out[i] = m
	}
	return out
}

func (b *binder) comparison(n comparison) bound {
	if _, ok := n.left.(literal); ok {
		if _, both := n.right.(literal); both {
			b.fail(n.pos, "two values are compared; name a field")
		}
		n.left, n.right, n.op = n.right, n.left, flipped(n.op)
	}
	left := b.expr(n.left)
	switch n.op {
	case "like", "ilike", "~":
		v, ok := n.right.(literal)
		if !ok || v.kind != stringLiteral {
			b.fail(n.pos, "the pattern is not in quotes")
		}
		p := boundPattern{op: n.op, of: b.as(left, Text, n.left.at()), pattern: v.text}
		if err := checkPattern(n.op, v.text); err != "" {
			b.fail(v.pos, "%s", err)
		}
		if n.not {
			return boundNot{p}
		}
		return p
	case "@>":
		return b.contains(n, left)
	}
	right := b.expr(n.right)
	left, right = b.unify(n, left, right)
	if k := left.kind(); n.op != "=" && n.op != "<>" && (k == Bool || k == JSON) {
		b.fail(n.pos, "%s cannot be compared by %s", k, n.op)
	}
	return boundCompare{op: n.op, left: left, right: right}
}

func (b *binder) contains(n comparison, left expr) bound {
	v, ok := n.right.(literal)
	if !ok || v.kind != stringLiteral {
		b.fail(n.pos, "the document is not in quotes")
	}
	if r, ok := left.(ref); ok && r.as == dynamic {
		r.as = JSON
		left = r
	}
	if left.kind() != JSON {
		b.fail(n.left.at(), "%s contains nothing; @> needs JSON", left.kind())
	}
	return boundContains{of: left, doc: v.text, val: b.document(v)}
}

// document reads a JSON literal. It fails for JSON that PostgreSQL would refuse.
func (b *binder) document(v literal) any {
	var raw json.RawMessage
	if err := rest.DecodeJSON([]byte(v.text), &raw); err != nil {
		b.fail(v.pos, "%q is not JSON", shorten(v.text))
	}
	return decode(raw)
}

func (b *binder) membership(n membership) bound {
	of := b.expr(n.of)
	kind := of.kind()
	if _, ok := of.(constant); ok {
		b.fail(n.pos, "the left side of in is not a field")
	}
	switch kind {
	case Int:
		for _, l := range n.list {
			kind = max(kind, b.constant(l, Int).as) // float, if one is not whole
		}
	case dynamic:
		kind = Text
		for i, l := range n.list {
			if k := numeric(naturalKind(l)); i == 0 {
				kind = k
			} else if k != kind {
				b.fail(l.pos, "the values of in are of several types")
			}
		}
	}
	of = b.as(of, kind, n.of.at())
	if kind == JSON {
		b.fail(n.pos, "JSON cannot be compared by in")
	}
	in := boundIn{not: n.not, of: of, kind: kind, list: make([]any, len(n.list))}
	for i, l := range n.list {
		in.list[i] = b.constant(l, kind).v
	}
	return in
}

// expr binds an operand.
func (b *binder) expr(o operand) expr {
	switch o := o.(type) {
	case name:
		return b.ref(o)
	case literal:
		return b.constant(o, naturalKind(o))
	case arithmetic:
		if b.sums++; b.sums > 8 {
			b.fail(o.pos, "more than 8 operations in one comparison")
		}
		left, right := b.number(o.left), b.number(o.right)
		whole := isWhole(left) && isWhole(right)
		if o.op == '%' && !whole {
			b.fail(o.pos, "%% is for whole numbers")
		}
		return calc{op: o.op, left: left, right: right, whole: whole}
	}
	panic(fmt.Sprintf("search: an operand %T", o))
}

// number binds an operand of arithmetic.
func (b *binder) number(o operand) expr {
	x := b.expr(o)
	if l, ok := o.(literal); ok {
		if l.kind != numberLiteral {
			b.fail(l.pos, "arithmetic is for numbers")
		}
		if a := math.Abs(l.number); a > 1e15 || a != 0 && a < 1e-9 {
			b.fail(l.pos, "the number is too large or too small for arithmetic")
		}
		return x
	}
	if x.kind() == Int {
		return x
	}
	return b.as(x, float, o.at())
}

func isWhole(x expr) bool {
	switch x := x.(type) {
	case constant:
		return x.as == Int
	case calc:
		return x.whole
	}
	return x.kind() == Int
}

// ref finds a field.
func (b *binder) ref(n name) expr {
	parts := n.parts
	if len(parts) > 1 && strings.EqualFold(parts[0], b.schema.Table) {
		parts = parts[1:]
	}
	field := strings.ToLower(strings.Join(parts, "."))
	def, ok := b.schema.Fields[field]
	path := n.path
	if !ok && len(parts) > 1 {
		field = strings.ToLower(parts[0])
		def, ok = b.schema.Fields[field]
		switch {
		case ok && def.Within != nil:
			def, ok = def.Within(parts[1:])
			field = field + "." + strings.Join(parts[1:], ".")
		default:
			ok = ok && def.Dotted
			if def.Flat {
				parts = []string{parts[0], strings.Join(parts[1:], ".")}
			}
			path = append(slices.Clone(parts[1:]), path...)
		}
	}
	if !ok {
		known := slices.Sorted(func(yield func(string) bool) {
			for f := range b.schema.Fields {
				if !yield(f) {
					return
				}
			}
		})
		b.fail(n.pos, "there is no field %q; possible: %s", shorten(strings.Join(n.parts, ".")),
			strings.Join(known, ", "))
	}
	r := ref{pos: n.pos, field: field, def: def, path: path, as: def.Type}
	switch {
	case len(path) == 0:
	case def.Type != JSON:
		b.fail(n.pos, "%s is %s; there is nothing within it", field, def.Type)
	case n.text:
		r.as = Text
	case len(n.path) == 0: // by dots
		r.as = dynamic
	}
	return r
}
