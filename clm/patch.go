package clm

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
)

const mergePatchType = "application/merge-patch+json"

// checkPatch checks the names of the fields of a PATCH. In a plain PATCH null labels or
// references are absent, as in the original; in a merge patch they are removed.
func checkPatch(given map[string]json.RawMessage, contentType string) error {
	for _, name := range []string{"labels", "references"} {
		if contentType != mergePatchType && string(given[name]) == "null" {
			delete(given, name)
		}
	}
	var fields []rest.FieldError
	for name := range given {
		if !slices.Contains(patchable, name) {
			fields = append(fields, rest.FieldError{Field: shorten(name), Constraint: "enum",
				Message: "cannot be changed; possible: " + strings.Join(patchable, ", ")})
		}
	}
	slices.SortFunc(fields, func(a, b rest.FieldError) int { return strings.Compare(a.Field, b.Field) })
	if len(given) == 0 {
		return rest.Errorf(http.StatusBadRequest, codeBadRequest, "nothing to change; give at least one of %s",
			strings.Join(patchable, ", "))
	}
	if err := fieldErrors(fields); err != nil {
		err.(*rest.Error).Code = codeMalformed
		return err
	}
	return nil
}

// replaced returns the change of a plain PATCH: each given field replaces the stored one.
func (s *Server) replaced(e *Entity, given map[string]json.RawMessage) (c change, err error) {
	for name, value := range given {
		switch name {
		case "spec":
			c.spec = value
		case "labels":
			err = rest.DecodeJSON(value, &c.labels)
		case "references":
			err = rest.DecodeJSON(value, &c.references)
		}
		if err != nil {
			return c, err
		}
	}
	return c, s.check(e, c)
}

// merged returns the change of a merge patch (RFC 7396).
func (s *Server) merged(e *Entity, have declared, given map[string]json.RawMessage) (change, error) {
	stored := map[string]any{"spec": have.Spec, "labels": have.Labels, "references": have.References}
	next := map[string]json.RawMessage{}
	for name, patch := range given {
		target, err := json.Marshal(stored[name])
		if err != nil {
			return change{}, err
		}
		if next[name], err = jsonvalue.MergeTexts(target, patch); err != nil {
			return change{}, err
		}
		if name != "spec" && string(next[name]) == "null" {
			next[name] = json.RawMessage(`{}`) // removed
		}
	}
	return s.replaced(e, next)
}

// check checks the fields that a change sets.
func (s *Server) check(e *Entity, c change) error {
	var fields []rest.FieldError
	if c.spec != nil {
		fields = append(fields, s.checkSpec(e, c.spec)...)
	}
	if c.labels != nil {
		fields = append(fields, checkLabels(c.labels)...)
	}
	if c.references != nil {
		fields = append(fields, e.checkReferences(c.references)...)
	}
	return fieldErrors(fields)
}

// checkSpec checks a spec by the provider's schema and by its entity.
func (s *Server) checkSpec(e *Entity, spec json.RawMessage) []rest.FieldError {
	return append(s.opts.Specs.check(e.SpecSchemaName, spec), e.checkExpiry(spec)...)
}
