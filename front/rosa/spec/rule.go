package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"atoll.dev/internal/rest"
)

// Problems are what is wrong with a document, field by field.
type Problems []rest.FieldError

func (p *Problems) add(field, format string, args ...any) {
	*p = append(*p, rest.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
}

// sorted are the problems by field, each once.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b rest.FieldError) int { return strings.Compare(a.Field, b.Field) })
	return slices.CompactFunc(p, func(a, b rest.FieldError) bool {
		return a.Field == b.Field &&
			a.Message == b.Message
	})
}

// A rule says what is wrong with one value of a document.
type rule func(p *Problems, path string, v any)

// member is the path of a member of an object.
func member(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// object has these members, and no others.
func object(members map[string]rule) rule {
	return func(p *Problems, path string, v any) {
		given, ok := v.(map[string]any)
		if !ok {
			p.add(path, "must be an object, not %s", kindOf(v))
			return
		}
		for name, value := range given {
			check, known := members[name]
			if !known {
				p.add(member(path, quoteName(name)), "is not known here%s", didYouMean(name, members))
				continue
			}
			check(p, member(path, name), value)
		}
	}
}

// didYouMean is for who got a name's case wrong, or forgot where it belongs.
func didYouMean(name string, members map[string]rule) string {
	for known := range members {
		if strings.EqualFold(strings.ReplaceAll(known, "_", ""), strings.ReplaceAll(name, "_", "")) {
			return "; did you mean " + known + "?"
		}
	}
	if len(members) > 12 {
		return ""
	}
	return "; possible: " + strings.Join(slices.Sorted(maps.Keys(members)), ", ")
}

func list(most int, each rule) rule {
	return func(p *Problems, path string, v any) {
		given, ok := v.([]any)
		if !ok {
			p.add(path, "must be a list, not %s", kindOf(v))
			return
		}
		if len(given) > most {
			p.add(path, "has %d items; %d are possible", len(given), most)
			return
		}
		for i, item := range given {
			each(p, fmt.Sprintf("%s[%d]", path, i), item)
		}
	}
}

// dictionary is an object whose members' names the customer chooses.
func dictionary(most int, key func(string) string, value rule) rule {
	return func(p *Problems, path string, v any) {
		given, ok := v.(map[string]any)
		if !ok {
			p.add(path, "must be an object, not %s", kindOf(v))
			return
		}
		if len(given) > most {
			p.add(path, "has %d members; %d are possible", len(given), most)
			return
		}
		for name, item := range given {
			if wrong := key(name); wrong != "" {
				p.add(member(path, quoteName(name)), "%s", wrong)
			}
			value(p, member(path, quoteName(name)), item)
		}
	}
}

// text is a string of at most so many bytes, for people.
func text(most int) rule {
	return matching(func(s string) string {
		switch {
		case len(s) > most:
			return fmt.Sprintf("has %d bytes; %d are possible", len(s), most)
		case strings.ContainsFunc(s, unicode.IsControl):
			return "has control characters"
		}
		return ""
	})
}

// matching is a string that wrong has nothing to say about.
func matching(wrong func(string) string) rule {
	return func(p *Problems, path string, v any) {
		s, ok := v.(string)
		if !ok {
			p.add(path, "must be a string, not %s", kindOf(v))
			return
		}
		if why := wrong(s); why != "" {
			p.add(path, "%s", why)
		}
	}
}

func oneOf(values ...string) rule {
	return matching(func(s string) string {
		if slices.Contains(values, s) {
			return ""
		}
		return quote(s) + " is not possible; possible: " + strings.Join(values, ", ")
	})
}

func boolean(p *Problems, path string, v any) {
	if _, ok := v.(bool); !ok {
		p.add(path, "must be true or false, not %s", kindOf(v))
	}
}

func integer(least, most int64) rule {
	return func(p *Problems, path string, v any) {
		n, ok := v.(json.Number)
		if !ok {
			p.add(path, "must be a whole number, not %s", kindOf(v))
			return
		}
		if i, err := strconv.ParseInt(n.String(), 10, 64); err != nil || i < least || i > most {
			p.add(path, "%s is not a whole number from %d to %d", quoteName(n.String()), least, most)
		}
	}
}

func moment(p *Problems, path string, v any) {
	matching(func(s string) string {
		if _, err := time.Parse(time.RFC3339, s); err != nil {
			return quote(s) + " is not a time such as 2027-01-02T15:04:05Z"
		}
		return ""
	})(p, path, v)
}

func duration(p *Problems, path string, v any) {
	matching(func(s string) string {
		if d, err := time.ParseDuration(s); err != nil || d < 0 || d > 7*24*time.Hour {
			return quote(s) + " is not a duration such as 90s, of at most a week"
		}
		return ""
	})(p, path, v)
}

// passed is for what the region passes on to the control plane as it is.
func passed(wanted string) rule {
	return func(p *Problems, path string, v any) {
		if kindOf(v) != wanted {
			p.add(path, "must be %s, not %s", wanted, kindOf(v))
		}
	}
}

// ours is what the service sets itself.
func ours(p *Problems, path string, _ any) { p.add(path, "is set by the service; leave it out") }

// labelKey and labelValue are Kubernetes' forms.
func labelKey(key string) string {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return "is not a label key: " + wrong[0]
	}
	return ""
}

func labelValue(value string) string {
	if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
		return quote(value) + " is not a label value: " + wrong[0]
	}
	return ""
}

func kindOf(v any) string {
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

// quote shows something of a request in a message.
func quote(s string) string { return strconv.Quote(rest.Shorten(s, 64)) }

// quoteName is a name of a request in a path.
func quoteName(s string) string {
	if len(s) > 64 || s == "" || !utf8.ValidString(s) ||
		strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' }) {
		return quote(s)
	}
	return s
}

// decode reads a document, numbers as they are written.
func decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// at finds a value in nested objects; nil when there is none.
func at(v any, path ...string) any {
	for _, name := range path {
		o, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = o[name]
	}
	return v
}

// within is the object at a path, which it makes where there is none. What is
// there and is no object stays: rules say so.
func within(o map[string]any, path ...string) map[string]any {
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

// fill sets what is not there.
func fill(o map[string]any, name string, value any) {
	if o[name] == nil {
		o[name] = value
	}
}

// withoutNulls drops members that are null, which mean the same as none.
func withoutNulls(v any) any {
	o, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for name, value := range o {
		if value == nil {
			delete(o, name)
			continue
		}
		o[name] = withoutNulls(value)
	}
	return o
}

// merged applies a merge patch (RFC 7396) and leaves both as they are.
func merged(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result := map[string]any{}
	if have, ok := target.(map[string]any); ok {
		maps.Copy(result, have)
	}
	for name, value := range members {
		if value == nil {
			delete(result, name)
		} else {
			result[name] = merged(result[name], value)
		}
	}
	return result
}

// unchanged reports each difference between two values, at its own path, as a
// change that is not possible.
func unchanged(p *Problems, path string, have, want any) {
	h, isObject := have.(map[string]any)
	w, stays := want.(map[string]any)
	if have == nil {
		h, isObject = map[string]any{}, stays
	}
	if want == nil {
		w, stays = map[string]any{}, isObject
	}
	if isObject && stays && len(h)+len(w) > 0 {
		for _, name := range slices.Sorted(maps.Keys(merged(h, w).(map[string]any))) {
			unchanged(p, member(path, quoteName(name)), h[name], w[name])
		}
		return
	}
	if !reflect.DeepEqual(have, want) {
		p.add(path, "cannot be changed")
	}
}
