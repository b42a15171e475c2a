package clm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	api "atoll.dev/api/clm"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// resolveReferences locks the referenced resources, and returns the references with kind
// and href. A missing resource, or one that is being deleted, is an error.
func (s *Server) resolveReferences(ctx context.Context, tx *store.Tx, e *Entity,
	wanted api.References) (api.References, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	resolved := api.References{}
	for _, refType := range slices.Sorted(maps.Keys(wanted)) {
		target := s.registry.byKind[e.rule(refType).TargetKind]
		for i, ref := range wanted[refType] {
			d, err := s.lock(ctx, tx, address{entity: target, id: ref.ID})
			if re, ok := errors.AsType[*rest.Error](err); ok && re.Status == http.StatusNotFound || err == nil &&
				d.DeletedAt != nil {
				return nil, fieldError(http.StatusBadRequest, codeValidation, fmt.Sprintf("references.%s[%d].id",
					refType, i), "exists",
					fmt.Sprintf("names no %s: %s", target.Kind, shorten(ref.ID)))
			}
			if err != nil {
				return nil, err
			}
			spec, err := declaredOf(d)
			if err != nil {
				return nil, err
			}
			resolved[refType] = append(resolved[refType], target.reference(spec.Owner, d.ID))
		}
	}
	return resolved, nil
}

// replaceReferences replaces the recorded references of a resource.
func replaceReferences(ctx context.Context, tx *store.Tx, id string, references api.References) error {
	if _, err := tx.Exec(ctx, `delete from reference where source = $1`, id); err != nil {
		return fmt.Errorf("recording references of %s: %w", id, err)
	}
	return insertReferences(ctx, tx, id, references)
}

// insertReferences records the references of a resource that has no recorded ones.
func insertReferences(ctx context.Context, tx *store.Tx, id string, references api.References) error {
	for refType, targets := range references {
		for _, t := range targets {
			if _, err := tx.Exec(ctx, `insert into reference (source, type, target) values ($1, $2, $3)`, id, refType,
				t.ID); err != nil {
				return fmt.Errorf("recording references of %s: %w", id, err)
			}
		}
	}
	return nil
}
