package arm

import (
	"encoding/json"
	"fmt"
	"strconv"

	"atoll.dev/internal/jsonvalue"
)

// visibility says which requests may write a field.
type visibility uint8

const (
	updatable  visibility = iota // by every PUT and PATCH
	createOnly                   // by the PUT that creates the resource
	readOnly                     // by the service
)

// kind is the type of a field's value.
type kind uint8

const (
	text kind = iota
	integer
	boolean
	object     // with members
	list       // of objects with members, or of texts without
	dictionary // of texts
	anything
)

// field describes one field of a resource, for all api-versions. Bodies are read, checked and shown by
// these tables alone.
type field struct {
	name       string
	kind       kind
	visibility visibility
	since      version // the first api-version that has the field; always: all
	// updatableSince makes a field that later api-versions can update createOnly before.
	updatableSince version
	required       bool
	// keptIfAbsent: a PUT without the field keeps the stored value.
	keptIfAbsent bool
	fallback     any // the value of a PUT that leaves the field out; nil: none
	members      []field
	check        func(value any) string // returns what is wrong with a value; nil: nothing can be
}

// problem is a mistake in one field of a request.
type problem struct{ target, message string }

type problems []problem

func (p *problems) add(target, format string, args ...any) {
	*p = append(*p, problem{target, fmt.Sprintf(format, args...)})
}

// visibleFields returns the fields of a stored object that an api-version has. Empty objects are left out.
func (v version) visibleFields(fields []field, stored map[string]any) map[string]any {
	shown := map[string]any{}
	for _, f := range fields {
		value, exists := stored[f.name]
		if !exists || f.since > v {
			continue
		}
		if inner, isObject := value.(map[string]any); isObject && f.kind == object && len(f.members) > 0 {
			if inner = v.visibleFields(f.members, inner); len(inner) == 0 {
				continue
			}
			value = inner
		}
		shown[f.name] = value
	}
	return shown
}

// bodyReader reads the body of a PUT in the form of one api-version, and gathers the problems. Stored
// fields that the api-version does not have, and fields that only the service writes, keep their values.
type bodyReader struct {
	version  version
	isNew    bool
	problems problems
}

// readObject returns the object to store after a PUT: body replaces old. A value that equals the stored one
// is not checked again, so that a stricter rule does not block other changes.
func (a *bodyReader) readObject(path string, fields []field, body, old map[string]any) map[string]any {
	after := map[string]any{}
	for _, f := range fields {
		was, existed := old[f.name]
		if f.visibility == readOnly || f.since > a.version {
			if existed {
				after[f.name] = was
			}
			continue
		}
		value, given := body[f.name]
		target := path + f.name
		if given && value == nil && f.required {
			a.problems.add(target, "Required value: field cannot be null")
			continue
		}
		isFixed := f.visibility == createOnly || f.updatableSince > a.version
		if f.kind == object && len(f.members) > 0 {
			inner, isObject := value.(map[string]any)
			if value != nil && !isObject {
				a.problems.add(target, "Invalid value: must be an object")
				continue
			}
			if value == nil && f.required {
				a.problems.add(target, "Required value")
				continue
			}
			oldInner, _ := was.(map[string]any)
			if value = a.readObject(target+".", f.members, inner, oldInner); len(value.(map[string]any)) > 0 {
				after[f.name] = value
			}
			continue
		}
		isDefault := false // of a field that a PUT leaves out
		if value == nil {
			switch {
			case f.keptIfAbsent && existed, isFixed && existed && !a.isNew && !given:
				value = was
			case f.fallback != nil:
				value, isDefault = f.fallback, true
			case f.required:
				a.problems.add(target, "Required value")
				continue
			default:
				if existed && isFixed {
					a.problems.add(target, "Forbidden: field is immutable")
				}
				continue
			}
		}
		after[f.name] = value
		if existed && jsonvalue.Equal(value, was) {
			continue
		}
		if wrong := f.checkValue(value); wrong != "" {
			a.problems.add(target, "%s", wrong)
		} else if isFixed && !a.isNew && (existed || !isDefault) { // a newer api-version adds a field with its default
			a.problems.add(target, "Forbidden: field is immutable")
		}
		if items, isList := value.([]any); isList && len(f.members) > 0 {
			for i, item := range items {
				inner, isObject := item.(map[string]any)
				if !isObject {
					a.problems.add(fmt.Sprintf("%s[%d]", target, i), "Invalid value: must be an object")
					continue
				}
				element := bodyReader{version: a.version, isNew: true}
				items[i] = element.readObject(fmt.Sprintf("%s[%d].", target, i), f.members, inner, nil)
				a.problems = append(a.problems, element.problems...)
			}
		}
	}
	return after
}

// checkValue returns the reason why a field cannot have a value, or "".
func (f field) checkValue(value any) string {
	isKind := false
	switch f.kind {
	case text:
		_, isKind = value.(string)
	case integer:
		number, isNumber := value.(json.Number)
		_, err := strconv.Atoi(number.String())
		isKind = isNumber && err == nil
	case boolean:
		_, isKind = value.(bool)
	case list:
		_, isKind = value.([]any)
	case dictionary:
		entries, isMap := value.(map[string]any)
		isKind = isMap
		for _, entry := range entries {
			if _, isText := entry.(string); !isText {
				isKind = false
			}
		}
	case object:
		_, isKind = value.(map[string]any)
	case anything:
		isKind = true
	}
	if !isKind {
		return fmt.Sprintf("Invalid value: must be %s", [...]string{"a string", "an integer", "a boolean", "an object",
			"a list", "an object of strings", ""}[f.kind])
	}
	if f.check == nil {
		return ""
	}
	return f.check(value)
}
