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
	dynamic                   // a JSON value that gets the type of the other side of the comparison
)

// Bind checks a query against a schema: each field exists and allows its operator and values, and
// both sides of each comparison have one type. An error is an *Error. Bind does not change the
// query; a query can be bound several times.
func (q *Query) Bind(s Schema) (f *Filter, err error) {
	defer recoverFailure(&err)
	if q.root == nil {
		return &Filter{}, nil
	}
	b := &binder{query: q, schema: s}
	b.checkAllowed(q.root, positive)
	return &Filter{root: b.bindCondition(q.root)}, nil
}

// binder turns the tree of a query into the tree of a Filter. Its methods panic with a failure.
type binder struct {
	query       *Query
	schema      Schema
	comparisons int // bound so far
	operations  int // arithmetic operations in the current comparison
}

func (b *binder) fail(pos int, format string, args ...any) {
	panic(failure{b.query.newError(pos, format, args...)})
}

func (b *binder) bindCondition(n node) bound {
	switch n := n.(type) {
	case logic:
		terms := b.mergeEqualities(n)
		if len(terms) == 1 {
			return b.bindCondition(terms[0])
		}
		l := boundLogic{or: n.or, terms: make([]bound, len(terms))}
		for i, t := range terms {
			l.terms[i] = b.bindCondition(t)
		}
		return l
	case negation:
		return boundNot{b.bindCondition(n.term)}
	}
	if b.comparisons++; b.comparisons > b.query.limits.Terms {
		b.fail(n.position(), "more than %d comparisons", b.query.limits.Terms)
	}
	b.operations = 0
	switch n := n.(type) {
	case comparison:
		return b.bindComparison(n)
	case membership:
		return b.bindMembership(n)
	case between:
		low := b.bindComparison(comparison{pos: n.pos, op: ">=", left: n.left, right: n.low})
		high := b.bindComparison(comparison{pos: n.pos, op: "<=", left: n.left, right: n.high})
		both := boundLogic{terms: []bound{low, high}}
		if n.not {
			return boundNot{both}
		}
		return both
	case nullTest:
		of := b.bindOperand(n.operand)
		if _, ok := of.(constant); ok {
			b.fail(n.pos, "a value is never null; name a field")
		}
		if r, ok := of.(fieldRef); ok && r.typ == dynamic {
			r.typ = Text
			of = r
		}
		return boundNull{not: n.not, operand: of}
	}
	panic(fmt.Sprintf("search: a %T", n))
}

// mergeEqualities returns the terms of an "or" with all "field = value" of one field replaced by
// one "field in (...)", and the terms of an "and" with all "field <> value" of one field replaced
// by one "field not in (...)". Clients list hundreds of consumers in this form; a membership counts
// as one comparison.
func (b *binder) mergeEqualities(n logic) []node {
	merged := "<>"
	if n.or {
		merged = "="
	}
	var out []node
	indexOf := map[string]int{} // in out, by field and type of value
	for _, t := range n.terms {
		c, ok := t.(comparison)
		field, isName := c.left.(name)
		value, isLiteral := c.right.(literal)
		if !ok || c.op != merged || !isName || !isLiteral || b.bindField(field).typeOf() == JSON {
			out = append(out, t)
			continue
		}
		key := fmt.Sprintf("%q %q %v %d", field.parts, field.path, field.text, value.kind)
		i, known := indexOf[key]
		if !known {
			indexOf[key] = len(out)
			out = append(out, t)
			continue
		}
		m, ok := out[i].(membership)
		if !ok {
			first := out[i].(comparison)
			m = membership{pos: first.pos, not: !n.or, left: first.left, list: []literal{first.right.(literal)}}
		}
		m.list = append(m.list, value)
		out[i] = m
	}
	return out
}

func (b *binder) bindComparison(n comparison) bound {
	if _, ok := n.left.(literal); ok {
		if _, both := n.right.(literal); both {
			b.fail(n.pos, "two values are compared; name a field")
		}
		n.left, n.right, n.op = n.right, n.left, flipOperator(n.op)
	}
	left := b.bindOperand(n.left)
	switch n.op {
	case "like", "ilike", "~":
		v, ok := n.right.(literal)
		if !ok || v.kind != stringLiteral {
			b.fail(n.pos, "the pattern is not in quotes")
		}
		p := boundPattern{op: n.op, left: b.convert(left, Text, n.left.position()), pattern: v.text}
		if err := checkPattern(n.op, v.text); err != "" {
			b.fail(v.pos, "%s", err)
		}
		if n.not {
			return boundNot{p}
		}
		return p
	case "@>":
		return b.bindContains(n, left)
	}
	right := b.bindOperand(n.right)
	left, right = b.unify(n, left, right)
	if k := left.typeOf(); n.op != "=" && n.op != "<>" && (k == Bool || k == JSON) {
		b.fail(n.pos, "%s cannot be compared by %s", k, n.op)
	}
	return boundCompare{op: n.op, left: left, right: right}
}

func (b *binder) bindContains(n comparison, left expr) bound {
	v, ok := n.right.(literal)
	if !ok || v.kind != stringLiteral {
		b.fail(n.pos, "the document is not in quotes")
	}
	if r, ok := left.(fieldRef); ok && r.typ == dynamic {
		r.typ = JSON
		left = r
	}
	if left.typeOf() != JSON {
		b.fail(n.left.position(), "%s contains nothing; @> needs JSON", left.typeOf())
	}
	return boundContains{left: left, text: v.text, value: b.parseJSON(v)}
}

// parseJSON decodes the JSON in a literal. It fails for JSON that PostgreSQL would refuse.
func (b *binder) parseJSON(v literal) any {
	var raw json.RawMessage
	if err := rest.DecodeJSON([]byte(v.text), &raw); err != nil {
		b.fail(v.pos, "%q is not JSON", shorten(v.text))
	}
	return decodeJSON(raw)
}

func (b *binder) bindMembership(n membership) bound {
	of := b.bindOperand(n.left)
	kind := of.typeOf()
	if _, ok := of.(constant); ok {
		b.fail(n.pos, "the left side of in is not a field")
	}
	switch kind {
	case Int:
		for _, l := range n.list {
			kind = max(kind, b.convertLiteral(l, Int).typ) // float when a value is not a whole number
		}
	case dynamic:
		kind = Text
		for i, l := range n.list {
			if k := withoutInt(typeOfLiteral(l)); i == 0 {
				kind = k
			} else if k != kind {
				b.fail(l.pos, "the values of in are of several types")
			}
		}
	}
	of = b.convert(of, kind, n.left.position())
	if kind == JSON {
		b.fail(n.pos, "JSON cannot be compared by in")
	}
	in := boundIn{not: n.not, left: of, elemType: kind, list: make([]any, len(n.list))}
	for i, l := range n.list {
		in.list[i] = b.convertLiteral(l, kind).value
	}
	return in
}

// bindOperand gives an operand a type: a field its own, a literal that of its text.
func (b *binder) bindOperand(o operand) expr {
	switch o := o.(type) {
	case name:
		return b.bindField(o)
	case literal:
		return b.convertLiteral(o, typeOfLiteral(o))
	case arithmetic:
		if b.operations++; b.operations > 8 {
			b.fail(o.pos, "more than 8 operations in one comparison")
		}
		left, right := b.bindNumber(o.left), b.bindNumber(o.right)
		whole := isWholeExpr(left) && isWholeExpr(right)
		if o.op == '%' && !whole {
			b.fail(o.pos, "%% is for whole numbers")
		}
		return calculation{op: o.op, left: left, right: right, whole: whole}
	}
	panic(fmt.Sprintf("search: an operand %T", o))
}

// bindNumber binds an operand of arithmetic. It fails if the operand is not a number.
func (b *binder) bindNumber(o operand) expr {
	x := b.bindOperand(o)
	if l, ok := o.(literal); ok {
		if l.kind != numberLiteral {
			b.fail(l.pos, "arithmetic is for numbers")
		}
		if a := math.Abs(l.number); a > 1e15 || a != 0 && a < 1e-9 {
			b.fail(l.pos, "the number is too large or too small for arithmetic")
		}
		return x
	}
	if x.typeOf() == Int {
		return x
	}
	return b.convert(x, float, o.position())
}

// isWholeExpr reports whether an operand of arithmetic is a whole number in each row.
func isWholeExpr(x expr) bool {
	switch x := x.(type) {
	case constant:
		return x.typ == Int
	case calculation:
		return x.whole
	}
	return x.typeOf() == Int
}

// bindField looks a name up in the schema. It fails if there is no such field.
func (b *binder) bindField(n name) fieldRef {
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
	r := fieldRef{pos: n.pos, field: field, definition: def, path: path, typ: def.Type}
	switch {
	case len(path) == 0:
	case def.Type != JSON:
		b.fail(n.pos, "%s is %s; there is nothing within it", field, def.Type)
	case n.text:
		r.typ = Text
	case len(n.path) == 0: // the path is written with dots
		r.typ = dynamic
	}
	return r
}
