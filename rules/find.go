package rules

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxWalk is the maximum number of values that one search may visit.
const maxWalk = 1 << 20

// Find returns the values of doc that the path selects, in order; none when no value matches. They
// are parts of doc, not copies. It returns an error for an index out of bounds, for an index or
// filter of a value that is not a list, for a comparison of values that have no order, and ErrCost
// when the search visits too many values. Several goroutines may call it.
func (p *Path) Find(doc any) ([]any, error) {
	return walkChain(&walker{left: maxWalk}, []any{doc}, p.nodes)
}

// walker counts the visited values of one search.
type walker struct{ left int } // how many values the search may still visit

// charge counts n visited values, and returns ErrCost above maxWalk.
func (w *walker) charge(n int) error {
	if w.left -= n; w.left < 0 {
		return fmt.Errorf("%w: a json path visits more than %d values", ErrCost, maxWalk)
	}
	return nil
}

// walkChain applies the nodes of a path one after the other: the first to values, each other node
// to the results of the node before.
func walkChain(w *walker, values []any, nodes []node) (found []any, err error) {
	for _, n := range nodes {
		if err := w.charge(1 + len(values)); err != nil {
			return nil, err
		}
		if values, err = n.find(w, values); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func (n textNode) find(*walker, []any) ([]any, error) { return []any{n.text}, nil }

func (n literalNode) find(_ *walker, in []any) ([]any, error) {
	out := make([]any, len(in))
	for i := range out {
		out[i] = n.value
	}
	return out, nil
}

func (n fieldNode) find(_ *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		if m, ok := v.(map[string]any); ok {
			if f, ok := m[n.name]; ok {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

func (wildcardNode) find(w *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		below := children(v)
		if err := w.charge(len(below)); err != nil {
			return nil, err
		}
		out = append(out, below...)
	}
	return out, nil
}

// children returns the values of an object in the order of their keys, or the elements of a list.
func children(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case map[string]any:
		all := make([]any, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			all = append(all, v[k])
		}
		return all
	}
	return nil
}

// find returns the objects, lists and strings that are not empty, of the values and at any depth
// below them, each before its children.
func (n recurseNode) find(w *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		if err := w.charge(1); err != nil {
			return nil, err
		}
		if s, ok := v.(string); ok && s != "" {
			out = append(out, v)
		}
		if below := children(v); len(below) > 0 {
			inner, err := n.find(w, below)
			if err != nil {
				return nil, err
			}
			out = append(append(out, v), inner...)
			if err := w.charge(len(inner)); err != nil { // append copies these once for each level
				return nil, err
			}
		}
	}
	return out, nil
}

func (n unionNode) find(w *walker, in []any) ([]any, error) {
	var out []any
	for _, branch := range n.branches {
		found, err := walkChain(w, in, branch)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

func (n sliceNode) find(w *walker, in []any) ([]any, error) {
	if n.hasStep && n.step <= 0 {
		return nil, errors.New("step must be > 0")
	}
	var out []any
	for _, v := range in {
		if v == nil {
			continue
		}
		list, ok := v.([]any)
		if !ok {
			return nil, fmt.Errorf("%T is not array or slice", v)
		}
		start, end := n.start, n.end
		if start < 0 {
			start += len(list)
		}
		if !n.hasEnd {
			end = len(list)
		}
		if end < 0 || end == 0 && n.isIndex {
			end += len(list)
		}
		switch {
		case start == end:
			continue
		case start < 0 || start >= len(list):
			return nil, fmt.Errorf("array index out of bounds: index %d, length %d", start, len(list))
		case end < 0 || end > len(list):
			return nil, fmt.Errorf("array index out of bounds: index %d, length %d", end-1, len(list))
		case start > end:
			return nil, fmt.Errorf("starting index %d is greater than ending index %d", start, end)
		}
		if err := w.charge(end - start); err != nil {
			return nil, err
		}
		for i := start; i < end; i += max(n.step, 1) {
			out = append(out, list[i])
			if n.step > end-i { // the sum might overflow
				break
			}
		}
	}
	return out, nil
}

func (n filterNode) find(w *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		list, ok := v.([]any)
		if !ok {
			return nil, fmt.Errorf("%T is not array or slice and cannot be filtered", v)
		}
		if err := w.charge(len(list)); err != nil { // a condition without nodes, (@), charges nothing
			return nil, err
		}
		for _, item := range list {
			pass, err := n.matches(w, item)
			if err != nil {
				return nil, err
			}
			if pass {
				out = append(out, item)
			}
		}
	}
	return out, nil
}

// matches reports whether an item of a list meets the filter's condition. Without an operator the
// item must have the path; a path that fails counts as absent.
func (n filterNode) matches(w *walker, item any) (bool, error) {
	left, err := walkChain(w, []any{item}, n.left)
	if n.op == "" {
		if errors.Is(err, ErrCost) {
			return false, err
		}
		return err == nil && len(left) > 0, nil
	}
	if err != nil {
		return false, err
	}
	if len(left) == 0 {
		return false, nil
	}
	right, err := walkChain(w, []any{item}, n.right)
	if err != nil || len(right) == 0 {
		return false, err
	}
	if len(left) > 1 || len(right) > 1 {
		return false, errors.New("can only compare one element at a time")
	}
	return compare(left[0], n.op, right[0])
}

// compare evaluates a comparison of two texts, two booleans or two numbers; others are an error.
func compare(a any, op string, b any) (bool, error) {
	var order int
	switch a := a.(type) {
	case string:
		s, ok := b.(string)
		if !ok {
			return false, comparisonError(b)
		}
		order = cmp.Compare(a, s)
	case bool:
		t, ok := b.(bool)
		if !ok {
			return false, comparisonError(b)
		}
		if op != "==" && op != "!=" {
			return false, errors.New("invalid type for comparison")
		}
		if a != t {
			order = 1
		}
	default:
		var ok bool
		if order, ok = compareNumbers(a, b); !ok {
			return false, comparisonError(a)
		}
	}
	switch op {
	case "==":
		return order == 0, nil
	case "!=":
		return order != 0, nil
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	}
	return order >= 0, nil
}

// comparisonError returns the error for a value that the other side cannot be compared with, in the
// words of client-go.
func comparisonError(v any) error {
	switch v.(type) {
	case nil, []any, map[string]any:
		return errors.New("invalid type for comparison")
	}
	return errors.New("incompatible types for comparison")
}

// compareNumbers compares two numbers of any types; ok is false when one is not a number.
func compareNumbers(a, b any) (order int, ok bool) {
	i, isInt := a.(int64)
	j, alsoInt := b.(int64)
	if isInt && alsoInt {
		return cmp.Compare(i, j), true
	}
	x, ok1 := toFloat(a)
	y, ok2 := toFloat(b)
	return cmp.Compare(x, y), ok1 && ok2
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case int:
		return float64(v), true
	}
	return 0, false
}
