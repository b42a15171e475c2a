package adapter

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"atoll.dev/cluster"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/rules"
)

// functions returns the functions of expressions beyond CEL's own, its extensions for strings and
// lists, and optional values.
func functions(now func() time.Time) []rules.Function {
	age := func(list []any, kind string) int64 {
		c := conditionOf(list, kind)
		stamp, _ := c["last_transition_time"].(string)
		if stamp == "" {
			stamp, _ = c["lastTransitionTime"].(string)
		}
		since, err := time.Parse(time.RFC3339, stamp)
		if err != nil {
			return -1
		}
		return int64(now().Sub(since) / time.Second)
	}
	return []rules.Function{
		{Name: "now", Result: rules.String, Do: func([]any) (any, error) {
			return now().UTC().Format(time.RFC3339),
				nil
		}},
		{Name: "toJson", Params: []rules.Type{rules.Any}, Result: rules.String, Do: func(args []any) (any, error) {
			return jsonInYAML(args[0])
		}},
		// The next five are ours, not HyperFleet's.
		{Name: "fromJson", Params: []rules.Type{rules.String}, Result: rules.Any, Do: func(args []any) (any, error) {
			return fromJSON(args[0].(string))
		}},
		{Name: "merge", Params: []rules.Type{rules.Any, rules.Any}, Result: rules.Any, Do: func(args []any) (
			any, error) {
			return jsonvalue.Merge(args[0], args[1]), nil
		}},
		{Name: "sha256", Params: []rules.Type{rules.String}, Result: rules.String, Do: func(args []any) (any, error) {
			return sha256Hex(args[0].(string)), nil
		}},
		{Name: "reportOf", Params: []rules.Type{rules.Any, rules.String}, Result: rules.Any,
			Do: func(args []any) (any, error) { return reportOf(args[0], cluster.Adapter(args[1].(string))), nil }},
		{Name: "nowMicro", Result: rules.String, Do: func([]any) (any, error) {
			return now().UTC().Format(microseconds),
				nil
		}},
		{Name: "dig", Params: []rules.Type{rules.Any, rules.String}, Result: rules.Any, Do: func(args []any) (
			any, error) {
			return valueAt(args[0], args[1].(string)), nil
		}},
		{Name: "conditionStatus", Params: []rules.Type{rules.List, rules.String}, Result: rules.String,
			Do: func(args []any) (any, error) {
				return conditionStatus(args[0].([]any), args[1].(string)), nil
			}},
		{Name: "conditionAge", Params: []rules.Type{rules.List, rules.String}, Result: rules.Int, Do: func(args []any) (
			any, error) {
			return age(args[0].([]any), args[1].(string)), nil
		}},
		{Name: "stableFor", Params: []rules.Type{rules.List, rules.String, rules.Int}, Result: rules.Bool,
			Do: func(args []any) (any, error) {
				list, kind := args[0].([]any), args[1].(string)
				return conditionStatus(list, kind) == "True" && age(list, kind) >= args[2].(int64), nil
			}},
		{Name: "statusFeedbackValue", Params: []rules.Type{rules.Any, rules.String}, Result: rules.String,
			Do: func(args []any) (any, error) {
				return feedbackText(args[0], args[1].(string)), nil
			}},
		{Name: "triState", Params: []rules.Type{rules.Bool, rules.Bool}, Result: rules.String, Do: func(args []any) (
			any, error) {
			switch {
			case args[0].(bool):
				return "True", nil
			case args[1].(bool):
				return "False", nil
			}
			return "Unknown", nil
		}},
	}
}

// reportOf returns an adapter's report in an answer of GET .../statuses; {} when there is none.
func reportOf(statuses any, adapter cluster.Adapter) any {
	list, _ := valueAt(statuses, "items").([]any)
	for _, x := range list {
		if report, ok := x.(map[string]any); ok && report["adapter"] == string(adapter) {
			return report
		}
	}
	return map[string]any{}
}

// valueAt follows a dotted path of members and indices; nil when a step does not exist.
func valueAt(v any, path string) any {
	for name := range strings.SplitSeq(strings.TrimSpace(path), ".") {
		switch at := v.(type) {
		case map[string]any:
			if name = strings.TrimSpace(name); name != "" {
				v = at[name]
			}
		case []any:
			i, err := strconv.Atoi(strings.TrimSpace(name))
			if err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

func conditionOf(list []any, kind string) map[string]any {
	for _, x := range list {
		if c, ok := x.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}

func conditionStatus(list []any, kind string) string {
	if s, ok := conditionOf(list, kind)["status"].(string); ok {
		return s
	}
	return "Unknown"
}

// feedbackText returns a feedback value of a ManifestWork's manifest as a text, "" without one. v is
// {"values":[{"name":...,"fieldValue":{"string":...}}]}, or an object with that as its
// statusFeedback.
func feedbackText(v any, name string) string {
	m, _ := v.(map[string]any)
	if inner, ok := m["statusFeedback"].(map[string]any); ok && m["values"] == nil {
		m = inner
	}
	values, _ := m["values"].([]any)
	for _, x := range values {
		value, _ := x.(map[string]any)
		if value["name"] == name {
			field, _ := value["fieldValue"].(map[string]any)
			return fieldText(field)
		}
	}
	return ""
}

// fieldText returns a feedback value of any type as a text. HyperFleet has strings only.
func fieldText(field map[string]any) string {
	for _, name := range []string{"string", "integer", "boolean", "jsonRaw"} {
		if v, ok := field[name]; ok {
			return toText(v)
		}
	}
	return ""
}

// microseconds is the layout of CLM's times.
const microseconds = "2006-01-02T15:04:05.000000Z07:00"

// fromJSON decodes a JSON document; "" is null.
func fromJSON(text string) (v any, err error) {
	if text == "" {
		return nil, nil
	}
	return v, utiljson.Unmarshal([]byte(text), &v)
}

// jsonInYAML returns v as JSON that a YAML parser reads as the same value, wherever it stands in a line. JSON lets
// strings hold characters that YAML 1.1 folds as line breaks (U+0085) or refuses (U+007F to U+009F, byte order marks,
// U+FFFE, U+FFFF); they are written as \uXXXX.
func jsonInYAML(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		if r >= 0x7f && r <= 0x9f || r == 0xfeff || r == 0xfffe || r == 0xffff {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return string(out), nil
}

// sha256Hex returns the SHA-256 sum in hexadecimal digits.
func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
