package search

import (
	"math"
	"strconv"
	"strings"
)

// typeOfLiteral returns the type that the text of a literal has by itself, without a field beside
// it.
func typeOfLiteral(l literal) Type {
	switch l.kind {
	case numberLiteral:
		if isWholeNumber(l.number) {
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

// isWholeNumber reports whether a number converts to int64 and back without loss.
func isWholeNumber(n float64) bool { return n == math.Trunc(n) && math.Abs(n) < 1<<53 }

// flipOperator returns the operator for exchanged sides: < becomes >.
func flipOperator(op string) string {
	switch op {
	case "<", "<=":
		return ">" + op[1:]
	case ">", ">=":
		return "<" + op[1:]
	}
	return op
}

// unify converts both sides of a comparison to one type, or fails.
func (b *binder) unify(n comparison, left, right expr) (expr, expr) {
	if l, ok := n.right.(literal); ok {
		return b.unifyWithLiteral(left, n.left, l)
	}
	leftType, rightType := left.typeOf(), right.typeOf()
	switch {
	case leftType == dynamic && rightType == dynamic:
		return b.convert(left, Text, n.pos), b.convert(right, Text, n.pos)
	case leftType == dynamic:
		return b.convert(left, withoutInt(rightType), n.left.position()), b.convert(right, withoutInt(rightType),
			n.right.position())
	case rightType == dynamic:
		return b.convert(left, withoutInt(leftType), n.left.position()), b.convert(right, withoutInt(leftType),
			n.right.position())
	case leftType != rightType && withoutInt(leftType) == float && withoutInt(rightType) == float:
		return b.convert(left, float, n.left.position()), b.convert(right, float, n.right.position())
	case leftType != rightType:
		b.fail(n.pos, "%s is compared with %s", leftType, rightType)
	}
	return left, right
}

// withoutInt returns the type to which a JSON value is converted for a comparison with type t:
// numbers in JSON are float.
func withoutInt(t Type) Type {
	if t == Int {
		return float
	}
	return t
}

// unifyWithLiteral converts an expression and a literal to one type: that of the expression, except
// that a dynamic expression gets the literal's type, and an Int becomes a float beside a number
// that is not whole.
func (b *binder) unifyWithLiteral(x expr, at operand, l literal) (expr, expr) {
	switch kind := x.typeOf(); kind {
	case dynamic:
		kind = withoutInt(typeOfLiteral(l))
		return b.convert(x, kind, at.position()), b.convertLiteral(l, kind)
	case Int:
		c := b.convertLiteral(l, Int)
		return b.convert(x, c.typ, at.position()), c
	case JSON:
		if l.kind != stringLiteral {
			b.fail(l.pos, "JSON is compared with JSON in quotes")
		}
		return x, constant{typ: JSON, value: jsonConstant{text: l.text, value: b.parseJSON(l)}}
	default:
		return x, b.convertLiteral(l, kind)
	}
}

// convert converts an expression to a type, or fails at the position.
func (b *binder) convert(x expr, kind Type, pos int) expr {
	switch have := x.typeOf(); {
	case have == kind:
		return x
	case have == dynamic && kind != Time && kind != JSON:
		r := x.(fieldRef)
		r.typ = withoutInt(kind)
		return r
	case have == Int && kind == float:
		return calculation{op: conversion, left: x}
	case have == dynamic:
		b.fail(pos, "a member of JSON is no time; compare it with a string in quotes")
	default:
		b.fail(pos, "%s stands where %s is expected", have, kind)
	}
	return nil
}

// convertLiteral converts a literal to a type, or fails. For Int, a number that is not whole
// becomes a float.
func (b *binder) convertLiteral(l literal, kind Type) constant {
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
		if kind == Int && isWholeNumber(n) {
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
