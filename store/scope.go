package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const findSQL = `select ` + columns + ` from document d where kind = any($1) and id = $2 and removed_at is null limit 1`

// Find returns the document of any kind that has the id, also one whose deletion was requested, or
// ErrNotFound. If documents of several kinds have the id it returns one of these.
func (s *Store) Find(ctx context.Context, id string) (Document, error) {
	kinds := make([]string, 0, len(s.kinds))
	for k := range s.kinds {
		kinds = append(kinds, string(k))
	}
	doc, found, err := s.lookup(ctx, findSQL, kinds, id)
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return Document{}, fmt.Errorf("finding %s: %w", id, err)
	}
	return doc, nil
}

// ListScope returns the named documents of a kind in a scope, also those whose deletion was
// requested, in the order of their names. It does not lock.
func (tx *Tx) ListScope(ctx context.Context, kind Kind, scope string) ([]Document, error) {
	fail := func(err error) ([]Document, error) {
		return nil, fmt.Errorf("reading %s in %q: %w", kind, scope, classify(ctx, err))
	}
	rows, err := tx.query(ctx, `select `+columns+` from document d
		where kind = $1 and scope = $2 and name <> '' and removed_at is null order by name, id`, string(kind), scope)
	if err != nil {
		return fail(err)
	}
	docs, err := pgx.CollectRows(rows, func(found pgx.CollectableRow) (Document, error) {
		var r row
		if err := found.Scan(r.targets()...); err != nil {
			return Document{}, err
		}
		return r.document(tx.s)
	})
	if err != nil {
		return fail(err)
	}
	return docs, nil
}
