package search

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"atoll.dev/internal/jsonvalue"
)

// Match reports whether a row matches the filter. The result is the same as that of PostgreSQL for
// Filter.SQL. valueOf returns the value of a field of the row by the field's name: nil for null;
// otherwise a string, int64, time.Time or bool by the field's type, and a json.RawMessage for JSON.
// Match may call it several times for one field.
func (f *Filter) Match(valueOf func(field string) any) bool {
	return f.root == nil || f.root.test(&evaluation{valueOf: valueOf, documents: map[string]any{}}) == yes
}

// truth is a truth value of SQL. The order makes "and" the minimum and "or" the maximum.
type truth int

const (
	no      truth = iota
	unknown       // a side of the comparison is null
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// evaluation is the evaluation of a filter on one row.
type evaluation struct {
	valueOf   func(field string) any
	documents map[string]any // the JSON fields that were decoded already, by field
}

// jsonNull is a null in JSON. In contrast to nil, which is SQL's null, it is a value.
type jsonNull struct{}

func (n boundLogic) test(e *evaluation) truth {
	result := yes
	if n.or {
		result = no
	}
	for _, t := range n.terms {
		if v := t.test(e); n.or {
			result = max(result, v)
		} else {
			result = min(result, v)
		}
	}
	return result
}

func (n boundNot) test(e *evaluation) truth { return yes - n.term.test(e) }

func (n boundCompare) test(e *evaluation) truth {
	l, r := n.left.eval(e), n.right.eval(e)
	if l == nil || r == nil {
		return unknown
	}
	if d, ok := r.(jsonConstant); ok {
		return truthOf(jsonvalue.Equal(l, d.value) == (n.op == "="))
	}
	if n.left.typeOf() == JSON {
		return truthOf(jsonvalue.Equal(l, r) == (n.op == "="))
	}
	c := compareValues(l, r)
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

// compareValues returns a negative number when l is less than r, 0 when they are equal, and
// otherwise a positive number. Both have the same type.
func compareValues(l, r any) int {
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
		return 1 // booleans are compared for equality only
	}
	panic(fmt.Sprintf("search: comparing a %T", l))
}

func (n boundIn) test(e *evaluation) truth {
	if len(n.list) == 0 {
		return truthOf(n.not)
	}
	v := n.left.eval(e)
	if v == nil {
		return unknown
	}
	for _, w := range n.list {
		if compareValues(v, w) == 0 {
			return truthOf(!n.not)
		}
	}
	return truthOf(n.not)
}

func (n boundNull) test(e *evaluation) truth { return truthOf((n.operand.eval(e) == nil) != n.not) }

func (n boundPattern) test(e *evaluation) truth {
	v, ok := n.left.eval(e).(string)
	if !ok {
		return unknown
	}
	switch n.op {
	case "like":
		return truthOf(matchLike(v, n.pattern))
	case "ilike":
		return truthOf(matchLike(lowerASCII(v), lowerASCII(n.pattern)))
	}
	re, err := regexp.Compile("(?s)" + n.pattern)
	return truthOf(err == nil && re.MatchString(v))
}

func (n boundContains) test(e *evaluation) truth {
	v := n.left.eval(e)
	if v == nil {
		return unknown
	}
	return truthOf(jsonContains(v, n.value))
}
