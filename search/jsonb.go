package search

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"atoll.dev/internal/jsonvalue"
)

// decodeJSON decodes well-formed JSON: objects to map[string]any, arrays to []any, numbers to
// json.Number and null to jsonNull. It returns nil for other texts.
func decodeJSON(raw json.RawMessage) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	return markNulls(v)
}

// markNulls replaces each nil in decoded JSON by jsonNull.
func markNulls(v any) any {
	switch v := v.(type) {
	case nil:
		return jsonNull{}
	case map[string]any:
		for k, w := range v {
			v[k] = markNulls(w)
		}
	case []any:
		for i, w := range v {
			v[i] = markNulls(w)
		}
	}
	return v
}

// jsonText returns the text of a JSON value as PostgreSQL's operator ->> does: nil for null, a
// string without quotes.
func jsonText(v any) any {
	switch v := v.(type) {
	case jsonNull:
		return nil
	case string:
		return v
	}
	var b strings.Builder
	writeJSON(&b, v)
	return b.String()
}

// writeJSON writes a value as PostgreSQL prints jsonb: shorter keys first, with a space after
// colons and commas.
func writeJSON(b *strings.Builder, v any) {
	switch v := v.(type) {
	case jsonNull:
		b.WriteString("null")
	case bool:
		if v {
			b.WriteString("true")
		} else {
			b.WriteString("false")
		}
	case json.Number:
		b.WriteString(plainNumber(v.String()))
	case string:
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v) // a string has no error
		b.WriteString(strings.TrimSuffix(text.String(), "\n"))
	case []any:
		b.WriteByte('[')
		for i, w := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSON(b, w)
		}
		b.WriteByte(']')
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
		b.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				b.WriteString(", ")
			}
			writeJSON(b, k)
			b.WriteString(": ")
			writeJSON(b, v[k])
		}
		b.WriteByte('}')
	}
}

// plainNumber writes a number without an exponent, as PostgreSQL prints it.
func plainNumber(n string) string {
	mantissa, exponent, ok := strings.Cut(strings.ToLower(n), "e")
	if !ok {
		return n
	}
	r, ok := new(big.Rat).SetString(n)
	var shift int64
	if e, eok := new(big.Int).SetString(exponent, 10); eok {
		shift = e.Int64()
	}
	if !ok {
		return n
	}
	_, decimals, _ := strings.Cut(mantissa, ".")
	return r.FloatString(max(0, len(decimals)-int(shift)))
}

// jsonContains reports whether a contains b, as PostgreSQL's operator @> for jsonb: for each member
// and element of b there is one in a that contains it. An array also contains a value that is one
// of its elements.
func jsonContains(a, b any) bool {
	if list, ok := a.([]any); ok {
		switch b.(type) {
		case []any, map[string]any:
		default:
			return slices.ContainsFunc(list, func(x any) bool { return jsonvalue.Equal(x, b) })
		}
	}
	return containsValue(a, b)
}

// containsValue is jsonContains without the rule for arrays, which holds at the top level only.
func containsValue(a, b any) bool {
	switch b := b.(type) {
	case map[string]any:
		a, ok := a.(map[string]any)
		if !ok {
			return false
		}
		for k, w := range b {
			if v, ok := a[k]; !ok || !containsValue(v, w) {
				return false
			}
		}
		return true
	case []any:
		a, ok := a.([]any)
		if !ok {
			return false
		}
		for _, w := range b {
			if !slices.ContainsFunc(a, func(v any) bool { return containsValue(v, w) }) {
				return false
			}
		}
		return true
	}
	return jsonvalue.Equal(a, b)
}
