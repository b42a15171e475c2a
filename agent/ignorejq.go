package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/itchyny/gojq"
)

// Limits of a jq expression, which is a program of the source: its time and its results.
const (
	jqTimeout = 200 * time.Millisecond
	jqPaths   = 1000
)

// byJQ finds the fields at a jq path expression.
func byJQ(obj map[string]any, text string) ([]fieldPath, error) {
	if _, err := gojq.Parse(text); err != nil {
		return nil, err
	}
	query, err := gojq.Parse("path(" + text + "\n)") // the text may end with a comment
	if err != nil {
		return nil, err
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	var input any // consists of the types that jq supports
	if err := json.Unmarshal(raw, &input); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), jqTimeout)
	defer cancel()
	var paths []fieldPath
	for results := code.RunWithContext(ctx, input); ; {
		v, ok := results.Next()
		if !ok {
			return paths, nil
		}
		if err, bad := v.(error); bad {
			return nil, err
		}
		steps, _ := v.([]any)
		if len(steps) == 0 {
			return nil, errors.New("it names the whole object")
		}
		paths = append(paths, pathsAt(obj, nil, steps)...)
		if len(paths) > jqPaths {
			return nil, fmt.Errorf("it finds more than %d fields", jqPaths)
		}
	}
}

// pathsAt converts a path of jq below at into paths that exist in the object. A slice of
// a list yields a path for each of its entries.
func pathsAt(v any, at fieldPath, steps []any) []fieldPath {
	if len(steps) == 0 {
		return []fieldPath{slices.Clone(at)}
	}
	switch s := steps[0].(type) {
	case string:
		m, _ := v.(map[string]any)
		if next, there := m[s]; there {
			return pathsAt(next, append(at, s), steps[1:])
		}
	case int:
		list, _ := v.([]any)
		if s < 0 {
			s += len(list)
		}
		if s >= 0 && s < len(list) {
			return pathsAt(list[s], append(at, s), steps[1:])
		}
	case map[string]any:
		list, _ := v.([]any)
		from, to := sliceBound(s["start"], 0, len(list)), sliceBound(s["end"], len(list), len(list))
		if len(steps) > 1 { // the next step counts within the slice
			if i, ok := steps[1].(int); ok && i >= 0 && from+i < to {
				return pathsAt(list[from+i], append(at, from+i), steps[2:])
			}
			return nil
		}
		var paths []fieldPath
		for i := from; i < to; i++ {
			paths = append(paths, append(slices.Clone(at), i))
		}
		return paths
	}
	return nil
}

// sliceBound returns a bound of a slice of a list with n entries, from 0 to n; none is the
// result when v is no number.
func sliceBound(v any, none, n int) int {
	i, ok := v.(int)
	if f, isFloat := v.(float64); isFloat {
		i, ok = int(f), true
	}
	switch {
	case !ok:
		return none
	case i < 0:
		i += n
	}
	return min(max(i, 0), n)
}
