package store

import (
	"context"
	"fmt"
)

// Tombstone returns a document that was removed, in its last state: Removed is true, and UpdatedAt
// is the time of the removal. It returns ErrNotFound for a document that was not removed or was
// created again, for an id that never existed, and when Compact has deleted the tombstone.
func (s *Store) Tombstone(ctx context.Context, kind Kind, id string) (Document, error) {
	doc, found, err := s.lookup(ctx, getSQL, string(kind), id)
	switch {
	case err != nil:
		return Document{}, fmt.Errorf("getting the tombstone of %s %s: %w", kind, id, err)
	case !found || !doc.Removed:
		return Document{}, fmt.Errorf("getting the tombstone of %s %s: %w", kind, id, ErrNotFound)
	}
	return doc, nil
}
