package clm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
)

// SpecSchemas are the schemas of specs by name, from the provider's OpenAPI file. The zero value has no
// schemas.
type SpecSchemas struct{ schemas openapi3.Schemas }

// ParseSpecSchemas reads components.schemas of an OpenAPI 3 document.
func ParseSpecSchemas(document []byte) (SpecSchemas, error) {
	doc, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return SpecSchemas{}, fmt.Errorf("reading the schemas of specs: %w", err)
	}
	if doc.Components == nil {
		return SpecSchemas{}, nil
	}
	return SpecSchemas{doc.Components.Schemas}, nil
}

// Bounds in bytes of a wrong value, and of the reason why it is wrong, in an answer.
const (
	maxValueShown  = 256
	maxReasonShown = 512
)

// has reports whether there is a schema of a name.
func (s SpecSchemas) has(name string) bool { return s.schemas[name] != nil }

// check checks a spec by the schema of a name, and returns all its mistakes. Without such a schema any object
// is valid.
func (s SpecSchemas) check(name string, spec json.RawMessage) []rest.FieldError {
	if trimmed := bytes.TrimSpace(spec); len(trimmed) == 0 || trimmed[0] != '{' {
		return []rest.FieldError{{Field: "spec", Constraint: "type", Message: "must be an object"}}
	}
	if !s.has(name) {
		return nil
	}
	var value any
	if err := json.Unmarshal(spec, &value); err != nil {
		return []rest.FieldError{{Field: "spec", Constraint: "type", Message: "must be an object"}}
	}
	return fieldsOf(s.schemas[name].Value.VisitJSON(value, openapi3.MultiErrors()))
}

// fieldsOf returns the mistakes in an error of kin-openapi.
func fieldsOf(err error) (fields []rest.FieldError) {
	if err == nil {
		return nil
	}
	if many, ok := errors.AsType[openapi3.MultiError](err); ok {
		for _, e := range many {
			fields = append(fields, fieldsOf(e)...)
		}
		return fields
	}
	f := rest.FieldError{Field: "spec", Constraint: "schema", Message: rest.Shorten(err.Error(), maxReasonShown)}
	if e, ok := errors.AsType[*openapi3.SchemaError](err); ok {
		f.Field = strings.Join(append([]string{"spec"}, e.JSONPointer()...), ".")
		f.Constraint, f.Message, f.Value = e.SchemaField, rest.Shorten(e.Reason, maxReasonShown), raw(e.Value)
		if len(f.Value) > maxValueShown {
			f.Value = nil
		}
	}
	return []rest.FieldError{f}
}

var (
	nameForm      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	labelNameForm = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	labelPrefix   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	maxLabelName  = 63
	maxLabelKey   = 255
	maxLabelValue = 63
	maxReason     = 1024 // characters
)

// checkName checks a name by its kind's limits.
func (e *Entity) checkName(name string) []rest.FieldError {
	switch {
	case name == "":
		return []rest.FieldError{{Field: "name", Constraint: "required", Message: "is required"}}
	case len(name) < e.NameMinLen || len(name) > e.NameMaxLen:
		constraint := "min_length"
		if len(name) > e.NameMaxLen {
			constraint = "max_length"
		}
		return []rest.FieldError{{Field: "name", Constraint: constraint, Value: raw(shorten(name)),
			Message: fmt.Sprintf("must have %d to %d characters, not %d", e.NameMinLen, e.NameMaxLen, len(name))}}
	case !nameForm.MatchString(name):
		return []rest.FieldError{{Field: "name", Constraint: "pattern", Value: raw(name),
			Message: "must be lower case letters, digits and hyphens, and begin and end with a letter or digit"}}
	}
	return nil
}

// checkLabels checks the keys and values of labels by Kubernetes' rules.
func checkLabels(labels api.Labels) (fields []rest.FieldError) {
	for key, value := range labels {
		prefix, name, qualified := strings.Cut(key, "/")
		if !qualified {
			prefix, name = "", key
		}
		switch {
		case len(key) > maxLabelKey, len(name) > maxLabelName, !labelNameForm.MatchString(name), qualified &&
			!labelPrefix.MatchString(prefix):
			fields = append(fields, rest.FieldError{Field: "labels", Constraint: "pattern", Value: raw(key),
				Message: fmt.Sprintf(
					"%q is no label key, which has up to 63 letters, digits, '-', '_' and '.', perhaps after a "+
						"domain and '/'", shorten(key))})
		case len(value) > maxLabelValue, value != "" && !labelNameForm.MatchString(value):
			fields = append(fields, rest.FieldError{Field: "labels." + key, Constraint: "pattern", Value: raw(value),
				Message: "must be up to 63 letters, digits, '-', '_' and '.'"})
		}
	}
	return fields
}

// checkReferences checks the number of references of each type. The transaction checks
// that their targets exist.
func (e *Entity) checkReferences(references api.References) (fields []rest.FieldError) {
	for kind, targets := range references {
		if e.rule(kind) == nil {
			fields = append(fields, rest.FieldError{Field: "references." + kind, Constraint: "enum",
				Message: "is no reference of a " + e.Kind})
			continue
		}
		seen := map[string]bool{}
		for i, t := range targets {
			field := fmt.Sprintf("references.%s[%d].id", kind, i)
			if target := e.rule(kind).TargetKind; t.Kind != target {
				fields = append(fields, rest.FieldError{Field: fmt.Sprintf("references.%s[%d].kind", kind, i),
					Constraint: "enum",
					Value:      raw(shorten(t.Kind)), Message: "must be '" + target + "'"})
			}
			if t.ID == "" {
				fields = append(fields, rest.FieldError{Field: field, Constraint: "required", Message: "is required"})
			} else if seen[t.ID] {
				fields = append(fields, rest.FieldError{Field: field, Constraint: "unique", Value: raw(shorten(t.ID)),
					Message: "is a duplicate"})
			}
			seen[t.ID] = true
		}
	}
	for _, rule := range e.References {
		n := len(references[rule.Type])
		if n < rule.Min || rule.Max > 0 && n > rule.Max {
			constraint := "min"
			if n >= rule.Min {
				constraint = "max"
			}
			fields = append(fields, rest.FieldError{Field: "references." + rule.Type, Constraint: constraint,
				Message: fmt.Sprintf("has %d; %s possible", n, rule.countText())})
		}
	}
	return fields
}

// countText returns the allowed number of references as words for an error.
func (r ReferenceRule) countText() string {
	switch {
	case r.Max == 0:
		return fmt.Sprintf("at least %d are", r.Min)
	case r.Min == r.Max:
		return fmt.Sprintf("%d are", r.Min)
	}
	return fmt.Sprintf("%d to %d are", r.Min, r.Max)
}

// shorten cuts a text of a request that an answer repeats.
func shorten(s string) string { return rest.Shorten(s, 64) }
