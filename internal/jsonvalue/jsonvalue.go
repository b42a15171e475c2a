// Package jsonvalue works with JSON as values: it decodes exactly, compares by meaning, and applies merge patches.
//
// A value is what Decode returns: nil, bool, string, json.Number, []any or map[string]any. Numbers stay as they are
// written, because float64 has no room for long ones: 9007199254740993 and 9007199254740992 differ. The package imports
// nothing of Atoll.
package jsonvalue

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"strconv"
	"strings"
)

// EqualTexts reports whether two JSON texts mean the same to PostgreSQL's jsonb: white space, the order of members,
// earlier duplicates of members, and the notation of numbers do not matter.
func EqualTexts(a, b []byte) (bool, error) {
	if bytes.Equal(a, b) {
		return true, nil
	}
	x, err := Decode(a)
	if err != nil {
		return false, err
	}
	y, err := Decode(b)
	if err != nil {
		return false, err
	}
	return Equal(x, y), nil
}

// EqualOptional is EqualTexts for texts that may be absent. An absent text equals null. Malformed texts are equal only
// when they are identical.
func EqualOptional(a, b []byte) bool {
	null := []byte("null")
	if len(a) == 0 {
		a = null
	}
	if len(b) == 0 {
		b = null
	}
	equal, err := EqualTexts(a, b)
	return err == nil && equal
}

// Equal reports whether two values mean the same to PostgreSQL's jsonb. Besides the values of Decode it takes numbers
// of type int, int64 and float64, which other decoders and templates make.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, v := range a {
			w, ok := b[name]
			if !ok || !Equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !Equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case nil, bool, string:
		return a == b
	}
	x, isNumber := numeral(a)
	y, areNumbers := numeral(b)
	if isNumber && areNumbers {
		return x == y || equalNumbers(x, y)
	}
	return isNumber == areNumbers && reflect.DeepEqual(a, b)
}

// numeral returns a number as JSON writes it. ok is false for a value that is no number.
func numeral(v any) (text string, ok bool) {
	switch v := v.(type) {
	case json.Number:
		return string(v), true
	case int:
		return strconv.Itoa(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	}
	return "", false
}

// equalNumbers compares two JSON numbers digit by digit, whatever their notation.
func equalNumbers(a, b string) bool {
	x, xok := decimalOf(a)
	y, yok := decimalOf(b)
	return xok && yok && x == y
}

// decimal is a number in one canonical form: digits without zeros at either end, times 10 to the exponent.
type decimal struct {
	negative bool
	digits   string
	exponent int64
}

// decimalOf splits a JSON number into sign, digits and exponent. It does not compute the number, so its cost does not
// depend on the exponent. ok is false for an exponent that an int32 cannot hold.
func decimalOf(s string) (d decimal, ok bool) {
	s, d.negative = strings.CutPrefix(s, "-")
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.ParseInt(s[i+1:], 10, 32)
		if err != nil {
			return decimal{}, false
		}
		d.exponent, s = e, s[:i]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	digits := whole + fraction
	trimmed := strings.TrimRight(digits, "0")
	d.exponent += int64(len(digits) - len(trimmed) - len(fraction))
	d.digits = strings.TrimLeft(trimmed, "0")
	if d.digits == "" {
		return decimal{}, true // jsonb's zero has neither sign nor exponent
	}
	return d, true
}

// Merge applies a merge patch (RFC 7396) to a value and returns the result. It changes neither of them; the result may
// share parts with both.
func Merge(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged := map[string]any{}
	if have, ok := target.(map[string]any); ok {
		maps.Copy(merged, have)
	}
	for name, value := range members {
		if value == nil {
			delete(merged, name)
		} else {
			merged[name] = Merge(merged[name], value)
		}
	}
	return merged
}

// Overlay returns base with the members of over in the place of those of the same name; objects are merged member by
// member. Unlike in a merge patch, null is a value. It changes neither of them; the result may share parts with both.
func Overlay(base, over map[string]any) map[string]any {
	merged := map[string]any{}
	maps.Copy(merged, base)
	for name, value := range over {
		below, isObject := merged[name].(map[string]any)
		above, areObjects := value.(map[string]any)
		if isObject && areObjects {
			value = Overlay(below, above)
		}
		merged[name] = value
	}
	return merged
}

// MergeTexts applies a merge patch to a JSON text.
func MergeTexts(target, patch []byte) (json.RawMessage, error) {
	t, err := Decode(target)
	if err != nil {
		return nil, err
	}
	p, err := Decode(patch)
	if err != nil {
		return nil, err
	}
	return json.Marshal(Merge(t, p))
}
