package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// columns are the columns of a document, in the order in which row and documentRow scan them. The
// alias of the table is d.
const columns = `d.kind, d.id, d.scope, d.name, d.version, d.generation, d.spec, d.status, d.detail, d.head,
	d.wire, d.created_at, d.updated_at, d.deleted_at, d.removed_at is not null, d.token, d.sealed, d.observed`

// row scans the columns of a document into pointers, because the statements of the feed return one
// row of nulls when no document changed. For statements without such a row there is documentRow.
type row struct {
	kind, id, scope, name      *string
	version, generation, token *int64
	spec, status, head, wire   []byte
	sealed, observed           []byte
	detail                     unpackedText
	created, updated, deleted  *time.Time
	removed                    *bool
}

// targets returns the arguments of Scan for the columns, and then for others.
func (r *row) targets(more ...any) []any {
	return append([]any{&r.kind, &r.id, &r.scope, &r.name, &r.version, &r.generation, &r.spec, &r.status, &r.detail,
		&r.head, &r.wire, &r.created, &r.updated, &r.deleted, &r.removed, &r.token, &r.sealed,
		&r.observed}, more...)
}

// empty reports whether the row has no document.
func (r *row) empty() bool { return r.kind == nil }

// document returns the document with its sensitive values, or an error of complete.
func (r *row) document(s *Store) (Document, error) {
	wire, head := joinWire(r.head, r.wire)
	return s.complete(Document{
		Kind: Kind(*r.kind), ID: *r.id, Scope: *r.scope, Name: *r.name, Version: *r.version, Generation: *r.generation,
		Spec: json.RawMessage(r.spec), Status: joinStatus(r.status, r.detail), Wire: wire,
		CreatedAt: r.created.UTC(), UpdatedAt: r.updated.UTC(), DeletedAt: utc(r.deleted), Removed: *r.removed,
		token: *r.token, head: head,
	}, r.observed, r.sealed)
}

// utc returns a copy of a time in UTC; nil for nil.
func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

const (
	getSQL  = `select ` + columns + ` from document d where kind = $1 and id = $2`
	wireSQL = `select d.scope, d.version, d.head, d.wire, d.sealed, d.observed from document d
	where kind = $1 and id = $2 and removed_at is null`
	lockSQL   = getSQL + ` for update`
	byNameSQL = `select ` + columns +
		` from document d where kind = $1 and scope = $2 and name = $3 and name <> ''
	and removed_at is null and deleted_at is null`
)

// querier is a connection, or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readOne runs a query for one document, which may be a tombstone. found is false when the query
// returns no row.
func (s *Store) readOne(ctx context.Context, conn querier, sql string, args ...any) (Document, bool, error) {
	var r documentRow
	err := conn.QueryRow(ctx, sql, args...).Scan(r.targets(&r.head, &r.wire)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return Document{}, false, nil
	}
	if err != nil {
		return Document{}, false, err
	}
	doc, err := r.document(s)
	return doc, err == nil, err
}

// Get returns a document, also one whose deletion was requested. It returns ErrNotFound for an id
// that never existed or whose document was removed. It reads on any free connection and sees all
// commits that ended before the call.
func (s *Store) Get(ctx context.Context, kind Kind, id string) (Document, error) {
	doc, found, err := s.lookup(ctx, getSQL, string(kind), id)
	switch {
	case err != nil:
		return Document{}, fmt.Errorf("getting %s %s: %w", kind, id, err)
	case !found || doc.Removed:
		return Document{}, fmt.Errorf("getting %s %s: %w", kind, id, ErrNotFound)
	}
	return doc, nil
}

// GetWire is Get for callers that use only Wire: the Document has Kind, ID, Scope, Version and
// Wire. It costs half, because PostgreSQL does not convert spec and status to text.
func (s *Store) GetWire(ctx context.Context, kind Kind, id string) (d Document, err error) {
	found := true
	var wire scannedWire
	var sealed, observed []byte
	head, tail := wire.targets()
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, wireSQL, string(kind), id).Scan(&d.Scope, &d.Version, head, tail, &sealed,
			&observed)
		if found = !errors.Is(err, pgx.ErrNoRows); !found {
			return nil
		}
		return err
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return Document{}, fmt.Errorf("getting %s %s: %w", kind, id, err)
	}
	d.Kind, d.ID = kind, id
	d.Wire, d.head = wire.wire, wire.split
	if d, err = s.complete(d, observed, sealed); err != nil {
		return Document{}, fmt.Errorf("getting %s %s: %w", kind, id, err)
	}
	return d, nil
}

// GetByName returns the document that has the name in that scope, or ErrNotFound. It does not find
// documents whose deletion was requested.
func (s *Store) GetByName(ctx context.Context, kind Kind, scope, name string) (Document, error) {
	doc, found, err := s.lookup(ctx, byNameSQL, string(kind), scope, name)
	switch {
	case err != nil:
		return Document{}, fmt.Errorf("getting %s %q in %q: %w", kind, name, scope, err)
	case !found:
		return Document{}, fmt.Errorf("getting %s %q in %q: %w", kind, name, scope, ErrNotFound)
	}
	return doc, nil
}

// lookup runs a query for one document on a connection of the pool.
func (s *Store) lookup(ctx context.Context, sql string, args ...any) (doc Document, found bool, err error) {
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		doc, found, err = s.readOne(ctx, c, sql, args...)
		return err
	})
	return doc, found, err
}
