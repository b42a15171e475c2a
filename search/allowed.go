package search

import (
	"slices"
	"strings"
)

// allowed fails for operators and values that the fields do not offer.
func (b *binder) allowed(n node, negated bool) {
	switch n := n.(type) {
	case logic:
		for _, t := range n.terms {
			b.allowed(t, negated)
		}
	case negation:
		b.allowed(n.of, true)
	case comparison:
		b.offers(n.left, n.op, negated || n.not, n.right)
		b.offers(n.right, n.op, negated || n.not, n.left)
	case membership:
		values := make([]operand, len(n.list))
		for i, l := range n.list {
			values[i] = l
		}
		b.offers(n.of, "in", negated || n.not, values...)
	case span:
		b.offers(n.of, "between", negated || n.not, n.low, n.high)
	case nullness:
		b.offers(n.of, "is", negated) // "is not null" is an operator, not a negation
	}
}

// offers fails if the field of an operand does not offer the operator, the
// negation, or one of the values beside it.
func (b *binder) offers(o operand, op string, negated bool, with ...operand) {
	switch o := o.(type) {
	case arithmetic:
		b.offers(o.left, op, negated)
		b.offers(o.right, op, negated)
	case name:
		r, ok := b.ref(o).(ref)
		if !ok {
			return
		}
		if r.def.Positive && negated {
			b.fail(o.pos, "%s cannot be negated", r.field)
		}
		if r.def.Ops != nil && !slices.Contains(r.def.Ops, op) {
			b.fail(o.pos, "%s cannot be searched by %s; possible: %s", r.field, op, strings.Join(r.def.Ops, " "))
		}
		for _, w := range with {
			if l, ok := w.(literal); ok && r.def.Enum != nil && !slices.Contains(r.def.Enum, l.text) {
				b.fail(l.pos, "%s is never %q; possible: %s", r.field, shorten(l.text), strings.Join(r.def.Enum, ", "))
			}
		}
	}
}
