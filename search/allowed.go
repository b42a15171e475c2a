package search

import (
	"slices"
	"strings"
)

// polarity is whether a condition stands below "not".
type polarity int

const (
	positive polarity = iota
	negated
)

// hasNot reports whether a condition has a "not" inside, as "not like" does. The "not" of "is not
// null" is part of an operator and is none.
func hasNot(n node) bool {
	switch n := n.(type) {
	case negation:
		return true
	case comparison:
		return n.not
	case membership:
		return n.not
	case between:
		return n.not
	}
	return false
}

// checkAllowed fails if a field in the condition does not allow its operator, its negation or one
// of its values.
func (b *binder) checkAllowed(n node, p polarity) {
	if hasNot(n) {
		p = negated
	}
	switch n := n.(type) {
	case logic:
		for _, t := range n.terms {
			b.checkAllowed(t, p)
		}
	case negation:
		b.checkAllowed(n.term, p)
	case comparison:
		b.checkOperand(n.left, n.op, p, n.right)
		b.checkOperand(n.right, n.op, p, n.left)
	case membership:
		values := make([]operand, len(n.list))
		for i, l := range n.list {
			values[i] = l
		}
		b.checkOperand(n.left, "in", p, values...)
	case between:
		b.checkOperand(n.left, "between", p, n.low, n.high)
	case nullTest:
		b.checkOperand(n.operand, "is", p)
	}
}

// checkOperand fails if a field in the operand does not allow the operator, the polarity, or one of
// the literals with which the operator compares it.
func (b *binder) checkOperand(o operand, op string, p polarity, others ...operand) {
	switch o := o.(type) {
	case arithmetic:
		b.checkOperand(o.left, op, p)
		b.checkOperand(o.right, op, p)
	case name:
		r := b.bindField(o)
		d := r.definition
		if d.Positive && p == negated {
			b.fail(o.pos, "%s cannot be negated", r.field)
		}
		if d.Ops != nil && !slices.Contains(d.Ops, op) {
			b.fail(o.pos, "%s cannot be searched by %s; possible: %s", r.field, op, strings.Join(d.Ops, " "))
		}
		for _, other := range others {
			if l, ok := other.(literal); ok && d.Enum != nil && !slices.Contains(d.Enum, l.text) {
				b.fail(l.pos, "%s is never %q; possible: %s", r.field, shorten(l.text), strings.Join(d.Enum, ", "))
			}
		}
	}
}
