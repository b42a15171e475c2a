package store

import (
	"context"
	"fmt"
	"time"
)

// Import is Create for a document from another database: it keeps Generation, CreatedAt, UpdatedAt
// and DeletedAt. It returns ErrExists also when a removed document has the id, and ErrInvalid when
// Generation or a time is missing.
func (tx *Tx) Import(ctx context.Context, d Document) (Document, error) {
	imported, err := tx.importDocument(ctx, d)
	if err != nil {
		return Document{}, fmt.Errorf("importing %s %s: %w", d.Kind, d.ID, classify(ctx, err))
	}
	return imported, nil
}

func (tx *Tx) importDocument(ctx context.Context, d Document) (Document, error) {
	kind, err := tx.s.kind(d.Kind)
	if err != nil {
		return d, err
	}
	if d.Generation < 1 || d.CreatedAt.IsZero() || d.UpdatedAt.IsZero() {
		return d, fmt.Errorf("%w: an imported document needs a generation and times", ErrInvalid)
	}
	created, updated, generation := d.CreatedAt.UTC().Truncate(time.Microsecond), d.UpdatedAt.UTC().Truncate(
		time.Microsecond), d.Generation
	next, err := kind.completeNew(d, nil)
	if err != nil {
		return d, err
	}
	now := next.UpdatedAt
	next.Generation, next.CreatedAt, next.UpdatedAt = generation, created, updated
	if err := kind.render(&next); err != nil {
		return d, err
	}
	// The history has the time of the import.
	stored := next
	stored.UpdatedAt = now
	w, err := kind.composeNew(ctx, insertStatement, stored, next.Spec, next.Status, tx.token, "import", next.Scope,
		next.Name,
		next.DeletedAt, next.Wire[:next.head], kind.facets(next))
	if err != nil {
		return d, err
	}
	hit, err := tx.send(ctx, w)
	switch {
	case isNameTaken(err):
		return d, &ExistsError{Kind: d.Kind, ByName: true}
	case err != nil:
		return d, err
	case !hit:
		return d, &ExistsError{Kind: d.Kind, ID: d.ID}
	}
	tx.s.countChange()
	_, err = tx.conn.Exec(ctx, `update document set created_at = $3, updated_at = $4 where kind = $1 and id = $2`,
		string(d.Kind), d.ID, created, updated)
	next.token = tx.token
	return next, err
}
