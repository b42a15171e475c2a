package rules

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxWalk is how many values one search may look at.
const maxWalk = 1 << 20

// Find returns what the path leads to, in order; nothing when it leads
// nowhere. What it returns are parts of doc, not copies. It errs on an index
// out of bounds, on an index or filter of what is no list, on a comparison of
// what cannot be compared, and with ErrCost when the search is too long.
func (p *Path) Find(doc any) ([]any, error) {
	return walkAll(&walker{left: maxWalk}, []any{doc}, p.nodes)
}

type walker struct{ left int }

// pay counts n values.
func (w *walker) pay(n int) error {
	if w.left -= n; w.left < 0 {
		return fmt.Errorf("%w: a json path visits more than %d values", ErrCost, maxWalk)
	}
	return nil
}

func walkAll(w *walker, values []any, nodes []node) (found []any, err error) {
	for _, n := range nodes {
		if err := w.pay(1 + len(values)); err != nil {
			return nil, err
		}
		if values, err = n.walk(w, values); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func (n textNode) walk(*walker, []any) ([]any, error) { return []any{n.text}, nil }

func (n literalNode) walk(_ *walker, in []any) ([]any, error) {
	out := make([]any, len(in))
	for i := range out {
		out[i] = n.value
	}
	return out, nil
}

func (n fieldNode) walk(_ *walker, in []any) ([]any, error) {
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

func (wildcardNode) walk(w *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		below := children(v)
		if err := w.pay(len(below)); err != nil {
			return nil, err
		}
		out = append(out, below...)
	}
	return out, nil
}

// children are the values of an object in the order of their keys, or those
// of a list.
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

// walk finds every object, list and string below that is not empty, each
// before what is in it.
func (n recurseNode) walk(w *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		if err := w.pay(1); err != nil {
			return nil, err
		}
		if s, ok := v.(string); ok && s != "" {
			out = append(out, v)
		}
		if below := children(v); len(below) > 0 {
			deeper, err := n.walk(w, below)
			if err != nil {
				return nil, err
			}
			out = append(append(out, v), deeper...)
			if err := w.pay(len(deeper)); err != nil { // copied once per level
				return nil, err
			}
		}
	}
	return out, nil
}

func (n unionNode) walk(w *walker, in []any) ([]any, error) {
	var out []any
	for _, branch := range n.branches {
		found, err := walkAll(w, in, branch)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

func (n sliceNode) walk(w *walker, in []any) ([]any, error) {
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
		if end < 0 || end == 0 && n.derived {
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
		if err := w.pay(end - start); err != nil {
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

func (n filterNode) walk(w *walker, in []any) ([]any, error) {
	var out []any
	for _, v := range in {
		list, ok := v.([]any)
		if !ok {
			return nil, fmt.Errorf("%T is not array or slice and cannot be filtered", v)
		}
		for _, item := range list {
			pass, err := n.passes(w, item)
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

func (n filterNode) passes(w *walker, item any) (bool, error) {
	lefts, err := walkAll(w, []any{item}, n.left)
	if n.op == "" {
		if errors.Is(err, ErrCost) {
			return false, err
		}
		return err == nil && len(lefts) > 0, nil // what cannot be reached is not there
	}
	if err != nil {
		return false, err
	}
	if len(lefts) == 0 {
		return false, nil
	}
	rights, err := walkAll(w, []any{item}, n.right)
	if err != nil || len(rights) == 0 {
		return false, err
	}
	if len(lefts) > 1 || len(rights) > 1 {
		return false, errors.New("can only compare one element at a time")
	}
	return compare(lefts[0], n.op, rights[0])
}

func compare(a any, op string, b any) (bool, error) {
	var order int
	switch a := a.(type) {
	case string:
		s, ok := b.(string)
		if !ok {
			return false, incomparable(b)
		}
		order = cmp.Compare(a, s)
	case bool:
		t, ok := b.(bool)
		if !ok {
			return false, incomparable(b)
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
			return false, incomparable(a)
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

func incomparable(v any) error {
	switch v.(type) {
	case nil, []any, map[string]any:
		return errors.New("invalid type for comparison")
	}
	return errors.New("incompatible types for comparison")
}

func compareNumbers(a, b any) (order int, ok bool) {
	i, isInt := a.(int64)
	j, alsoInt := b.(int64)
	if isInt && alsoInt {
		return cmp.Compare(i, j), true
	}
	x, ok1 := float(a)
	y, ok2 := float(b)
	return cmp.Compare(x, y), ok1 && ok2
}

func float(v any) (float64, bool) {
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
