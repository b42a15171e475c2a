package search

import (
	"math"
	"strconv"
	"strings"
)

// naturalKind returns the type of a literal that is compared with no typed field.
func naturalKind(l literal) Type {
	switch l.kind {
	case numberLiteral:
		if whole(l.number) {
			return Int
		}
		return float
	case timeLiteral:
		return Time
	case boolLiteral:
		return Bool
	}
	return Text
}

func whole(n float64) bool { return n == math.Trunc(n) && math.Abs(n) < 1<<53 }

// flipped returns the operator for exchanged sides: < becomes >.
func flipped(op string) string {
	switch op {
	case "<", "<=":
		return ">" + op[1:]
	case ">", ">=":
		return "<" + op[1:]
	}
	return op
}

// unify gives both sides of a comparison one type.
func (b *binder) unify(n comparison, left, right expr) (expr, expr) {
	if l, ok := n.right.(literal); ok {
		return b.against(left, n.left, l)
	}
	lk, rk := left.kind(), right.kind()
	switch {
	case lk == dynamic && rk == dynamic:
		return b.as(left, Text, n.pos), b.as(right, Text, n.pos)
	case lk == dynamic:
		return b.as(left, numeric(rk), n.left.at()), b.as(right, numeric(rk), n.right.at())
	case rk == dynamic:
		return b.as(left, numeric(lk), n.left.at()), b.as(right, numeric(lk), n.right.at())
	case lk != rk && numeric(lk) == float && numeric(rk) == float:
		return b.as(left, float, n.left.at()), b.as(right, float, n.right.at())
	case lk != rk:
		b.fail(n.pos, "%s is compared with %s", lk, rk)
	}
	return left, right
}

func numeric(k Type) Type {
	if k == Int {
		return float
	}
	return k
}

// against converts a field and a literal to one type: the field's.
func (b *binder) against(x expr, at operand, l literal) (expr, expr) {
	switch kind := x.kind(); kind {
	case dynamic:
		kind = numeric(naturalKind(l))
		return b.as(x, kind, at.at()), b.constant(l, kind)
	case Int:
		c := b.constant(l, Int)
		return b.as(x, c.as, at.at()), c
	case JSON:
		if l.kind != stringLiteral {
			b.fail(l.pos, "JSON is compared with JSON in quotes")
		}
		return x, constant{as: JSON, v: document{text: l.text, val: b.document(l)}}
	default:
		return x, b.constant(l, kind)
	}
}

// document is a JSON constant.
type document struct {
	text string
	val  any
}

// as converts an expression to a type, or fails.
func (b *binder) as(x expr, kind Type, pos int) expr {
	switch have := x.kind(); {
	case have == kind:
		return x
	case have == dynamic && kind != Time && kind != JSON:
		r := x.(ref)
		r.as = numeric(kind)
		return r
	case have == Int && kind == float:
		return calc{op: ' ', left: x}
	case have == dynamic:
		b.fail(pos, "a member of JSON is no time; compare it with a string in quotes")
	default:
		b.fail(pos, "%s stands where %s is expected", have, kind)
	}
	return nil
}

// constant converts a literal to a type. For an Int, a number that is not whole
// becomes a float.
func (b *binder) constant(l literal, kind Type) constant {
	switch kind {
	case Text:
		if l.kind == stringLiteral {
			return constant{Text, l.text}
		}
		b.fail(l.pos, "%s is compared with a text; put it in quotes", shorten(l.text))
	case Int, float:
		n := l.number
		if l.kind == stringLiteral {
			text := strings.TrimLeft(l.text, "+-")
			parsed, err := strconv.ParseFloat(l.text, 64)
			if err != nil || numberPattern.FindString(text) != text {
				b.fail(l.pos, "%q is not a number", shorten(l.text))
			}
			n = parsed
		} else if l.kind != numberLiteral {
			b.fail(l.pos, "%s is not a number", shorten(l.text))
		}
		if kind == Int && whole(n) {
			return constant{Int, int64(n)}
		}
		return constant{float, n}
	case Time:
		if l.kind == timeLiteral {
			return constant{Time, l.time}
		}
		t, ok := parseTime(strings.TrimSpace(l.text))
		if l.kind != stringLiteral || !ok {
			b.fail(l.pos, "%q is not a time such as 2006-01-02T15:04:05Z", shorten(l.text))
		}
		return constant{Time, t}
	case Bool:
		switch strings.ToLower(l.text) {
		case "true":
			return constant{Bool, true}
		case "false":
			return constant{Bool, false}
		}
		b.fail(l.pos, "%q is neither true nor false", shorten(l.text))
	}
	b.fail(l.pos, "%s cannot be compared with a value", kind)
	return constant{}
}
