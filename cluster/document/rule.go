package document

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Rule checks the value at a path and adds a problem for each wrong field. It
// does not change the value.
type Rule func(p *Problems, path string, v any)

// Object accepts an object that has no other members than these, and checks
// each with its rule. Members may be missing.
func Object(members map[string]Rule) Rule {
	return func(p *Problems, path string, v any) {
		given, ok := v.(map[string]any)
		if !ok {
			p.Add(path, "must be an object, not %s", KindOf(v))
			return
		}
		for name, value := range given {
			check, known := members[name]
			if !known {
				p.Add(JoinPath(path, QuoteName(name)), "is not known here%s", suggest(name, members))
				continue
			}
			check(p, JoinPath(path, name), value)
		}
	}
}

// suggest returns the end of a message about an unknown member: the member that
// differs in case or underscores only, or the list of a small object's members.
func suggest(name string, members map[string]Rule) string {
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

// List accepts a list of at most maxItems items and checks each with item.
func List(maxItems int, item Rule) Rule {
	return func(p *Problems, path string, v any) {
		given, ok := v.([]any)
		if !ok {
			p.Add(path, "must be a list, not %s", KindOf(v))
			return
		}
		if len(given) > maxItems {
			p.Add(path, "has %d items; %d are possible", len(given), maxItems)
			return
		}
		for i, value := range given {
			item(p, fmt.Sprintf("%s[%d]", path, i), value)
		}
	}
}

// Dictionary accepts an object of at most maxMembers members whose names the
// customer chooses. checkKey returns the problem of a name, or "".
func Dictionary(maxMembers int, checkKey func(string) string, value Rule) Rule {
	return func(p *Problems, path string, v any) {
		given, ok := v.(map[string]any)
		if !ok {
			p.Add(path, "must be an object, not %s", KindOf(v))
			return
		}
		if len(given) > maxMembers {
			p.Add(path, "has %d members; %d are possible", len(given), maxMembers)
			return
		}
		for name, item := range given {
			if wrong := checkKey(name); wrong != "" {
				p.Add(JoinPath(path, QuoteName(name)), "%s", wrong)
			}
			value(p, JoinPath(path, QuoteName(name)), item)
		}
	}
}

// String accepts a string for which check returns "". Otherwise the message is
// what check returns.
func String(check func(string) string) Rule {
	return func(p *Problems, path string, v any) {
		s, ok := v.(string)
		if !ok {
			p.Add(path, "must be a string, not %s", KindOf(v))
			return
		}
		if wrong := check(s); wrong != "" {
			p.Add(path, "%s", wrong)
		}
	}
}

// Text accepts a string of at most maxBytes bytes without control characters.
func Text(maxBytes int) Rule {
	return String(func(s string) string {
		switch {
		case len(s) > maxBytes:
			return fmt.Sprintf("has %d bytes; %d are possible", len(s), maxBytes)
		case strings.ContainsFunc(s, unicode.IsControl):
			return "has control characters"
		}
		return ""
	})
}

// OneOf accepts one of the given strings.
func OneOf(values ...string) Rule {
	return String(func(s string) string {
		if slices.Contains(values, s) {
			return ""
		}
		return Quote(s) + " is not possible; possible: " + strings.Join(values, ", ")
	})
}

// Boolean accepts true and false.
func Boolean(p *Problems, path string, v any) {
	if _, ok := v.(bool); !ok {
		p.Add(path, "must be true or false, not %s", KindOf(v))
	}
}

// Integer accepts a whole number from least to most.
func Integer(least, most int64) Rule {
	return func(p *Problems, path string, v any) {
		n, ok := v.(json.Number)
		if !ok {
			p.Add(path, "must be a whole number, not %s", KindOf(v))
			return
		}
		if i, err := strconv.ParseInt(n.String(), 10, 64); err != nil || i < least || i > most {
			p.Add(path, "%s is not a whole number from %d to %d", QuoteName(n.String()), least, most)
		}
	}
}

// Time accepts a time of RFC 3339.
func Time(p *Problems, path string, v any) {
	String(func(s string) string {
		if _, err := time.Parse(time.RFC3339, s); err != nil {
			return Quote(s) + " is not a time such as 2027-01-02T15:04:05Z"
		}
		return ""
	})(p, path, v)
}

// maxDuration is the longest time that Duration accepts.
const maxDuration = 7 * 24 * time.Hour

// Duration accepts a duration in Go's notation from 0 to a week.
func Duration(p *Problems, path string, v any) {
	String(func(s string) string {
		if d, err := time.ParseDuration(s); err != nil || d < 0 || d > maxDuration {
			return Quote(s) + " is not a duration such as 90s, of at most a week"
		}
		return ""
	})(p, path, v)
}

// AnyObject accepts any object: the region passes it on as it is.
func AnyObject(p *Problems, path string, v any) { checkKind(p, path, v, "an object") }

// AnyList accepts any list: the region passes it on as it is.
func AnyList(p *Problems, path string, v any) { checkKind(p, path, v, "a list") }

func checkKind(p *Problems, path string, v any, want string) {
	if KindOf(v) != want {
		p.Add(path, "must be %s, not %s", want, KindOf(v))
	}
}

// Anything accepts every value.
func Anything(*Problems, string, any) {}

// SetByService refuses every value: the service sets the field itself.
func SetByService(p *Problems, path string, _ any) {
	p.Add(path, "is set by the service; leave it out")
}

// LabelKey returns the problem of the key of a Kubernetes label, or "".
func LabelKey(key string) string {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return "is not a label key: " + wrong[0]
	}
	return ""
}

// LabelValue returns the problem of the value of a Kubernetes label, or "".
func LabelValue(value string) string {
	if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
		return Quote(value) + " is not a label value: " + wrong[0]
	}
	return ""
}
