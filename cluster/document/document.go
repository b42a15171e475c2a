// Package document checks JSON documents field by field and changes them as
// JSON merge patches do. It reports every wrong field at once, each with its
// path, so that a customer can mend a request in one step.
//
// A Rule checks one value. Object, List and Dictionary build the rule of a
// document from the rules of its parts. Decode keeps numbers as json.Number, so
// that a large number is checked as it was written.
//
// Everything here is a function of its arguments: no clock, no I/O. Package
// cluster and the fronts use it.
package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"atoll.dev/internal/jsonvalue"
)

// Problem is one wrong field of a document.
type Problem struct {
	Field   string // its path, as spec.tags or spec.taints[0].key
	Message string // the problem as a predicate: "is missing"
}

// Problems are the wrong fields of a document.
type Problems []Problem

// Add appends a problem; the message is formatted as by fmt.Sprintf.
func (p *Problems) Add(field, format string, args ...any) {
	*p = append(*p, Problem{Field: field, Message: fmt.Sprintf(format, args...)})
}

// Sorted orders the problems by field and removes repetitions.
func (p Problems) Sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int { return strings.Compare(a.Field, b.Field) })
	return slices.Compact(p)
}

// Decode reads JSON and keeps numbers as json.Number.
func Decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// Lookup finds the value at a path of nested objects; nil when the path leads
// nowhere.
func Lookup(v any, path ...string) any {
	for _, name := range path {
		o, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = o[name]
	}
	return v
}

// Ensure returns the object at a path below o and creates each object that is
// missing. A value on the path that is no object stays where it is, for the
// rules to report; Ensure then returns an object that belongs to nothing.
func Ensure(o map[string]any, path ...string) map[string]any {
	for _, name := range path {
		next, ok := o[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			if o[name] == nil {
				o[name] = next
			}
		}
		o = next
	}
	return o
}

// SetDefault sets a member that is missing or null.
func SetDefault(o map[string]any, name string, value any) {
	if o[name] == nil {
		o[name] = value
	}
}

// DropNulls removes members that are null, at every depth of nested objects,
// and returns v. A null means the same as no member.
func DropNulls(v any) any {
	o, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for name, value := range o {
		if value == nil {
			delete(o, name)
			continue
		}
		o[name] = DropNulls(value)
	}
	return o
}

// Merge returns target with a merge patch (RFC 7396) applied. It changes neither
// argument.
func Merge(target, patch any) any {
	return jsonvalue.Merge(target, patch)
}

// CheckUnchanged reports each difference between two values, at its own path, as
// "cannot be changed".
func CheckUnchanged(p *Problems, path string, before, after any) {
	b, beforeIsObject := before.(map[string]any)
	a, afterIsObject := after.(map[string]any)
	if before == nil {
		b, beforeIsObject = map[string]any{}, afterIsObject
	}
	if after == nil {
		a, afterIsObject = map[string]any{}, beforeIsObject
	}
	if beforeIsObject && afterIsObject && len(b)+len(a) > 0 {
		for _, name := range slices.Sorted(maps.Keys(Merge(b, a).(map[string]any))) {
			CheckUnchanged(p, JoinPath(path, QuoteName(name)), b[name], a[name])
		}
		return
	}
	if !jsonvalue.Equal(before, after) {
		p.Add(path, "cannot be changed")
	}
}

// JoinPath returns the path of a member of the object at path.
func JoinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// KindOf names the JSON kind of a decoded value, with its article.
func KindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return fmt.Sprintf("%T", v)
}

// maxQuoted is how many bytes of a request's text a message repeats.
const maxQuoted = 64

// Quote quotes a text of a request for a message and cuts it when it is long.
func Quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "..."
	}
	return strconv.Quote(s)
}

// QuoteName returns a member's name for a path: quoted when it is long, empty
// or has spaces or characters that cannot be printed.
func QuoteName(s string) string {
	notPlain := func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }
	if len(s) > maxQuoted || s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, notPlain) {
		return Quote(s)
	}
	return s
}
