package adapter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// convert converts a value to a param's type. Without a type it returns the value.
func convert(v any, kind string) (any, error) {
	switch kind {
	case "":
		return v, nil
	case "string":
		return toText(v), nil
	case "int", "int64":
		return toInt(v)
	case "float", "float64":
		return toFloat(v)
	case "bool":
		return toBool(v)
	}
	return nil, fmt.Errorf("%q is no type", kind)
}

func toText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// toInt converts to an integer and truncates fractions.
func toInt(v any) (int64, error) {
	switch v := v.(type) {
	case int:
		return int64(v), nil
	case int64:
		return v, nil
	case float64:
		if math.IsNaN(v) || v >= math.MaxInt64 || v <= math.MinInt64 {
			return 0, fmt.Errorf("%v is no whole number", v)
		}
		return int64(v), nil
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	case string:
		if i, err := strconv.ParseInt(v, 10, 64); err == nil {
			return i, nil
		}
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return toInt(f)
		}
		return 0, fmt.Errorf("%q is no number", v)
	}
	return 0, fmt.Errorf("a %s is no number", kindOf(v))
}

func toFloat(v any) (float64, error) {
	switch v := v.(type) {
	case int:
		return float64(v), nil
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	case bool:
		i, err := toInt(v)
		return float64(i), err
	case string:
		f, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no number", v)
		}
		return f, nil
	}
	return 0, fmt.Errorf("a %s is no number", kindOf(v))
}

func toBool(v any) (bool, error) {
	switch v := v.(type) {
	case bool:
		return v, nil
	case int64:
		return v != 0, nil
	case float64:
		return v != 0, nil
	case string:
		switch strings.ToLower(v) {
		case "true", "t", "1", "yes", "y", "on":
			return true, nil
		case "false", "f", "0", "no", "n", "off", "":
			return false, nil
		}
		return false, fmt.Errorf("%q is neither true nor false", v)
	}
	return false, fmt.Errorf("a %s is neither true nor false", kindOf(v))
}

// kindOf names the JSON type of a value.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "mapping"
	case []any:
		return "list"
	case string:
		return "string"
	case bool:
		return "truth value"
	}
	return "number"
}

// isEmpty reports whether a value is null, "", [] or {}.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// isTrue converts an expression's value to a condition: a bool is itself, any other value is true
// unless it is empty.
func isTrue(v any) bool {
	if b, ok := v.(bool); ok {
		return b
	}
	return !isEmpty(v)
}
