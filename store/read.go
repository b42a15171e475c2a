package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// columns of a document, in the order in which row scans them. The alias d is the table.
const columns = `d.kind, d.id, d.scope, d.name, d.version, d.generation, d.spec, d.status, d.head, d.wire,
	d.created_at, d.updated_at, d.deleted_at, d.removed_at is not null, d.token`

// row scans the columns into pointers, because the feed's statement has one row of nulls when nothing changed.
type row struct {
	kind, id, scope, name      *string
	version, generation, token *int64
	spec, status, head, wire   []byte
	created, updated, deleted  *time.Time
	removed                    *bool
}

func (r *row) targets(more ...any) []any {
	return append([]any{&r.kind, &r.id, &r.scope, &r.name, &r.version, &r.generation, &r.spec, &r.status, &r.head, &r.wire,
		&r.created, &r.updated, &r.deleted, &r.removed, &r.token}, more...)
}

func (r *row) empty() bool { return r.kind == nil }

func (r *row) document() Document {
	wire, head := joinWire(r.head, r.wire)
	return Document{
		Kind: Kind(*r.kind), ID: *r.id, Scope: *r.scope, Name: *r.name, Version: *r.version, Generation: *r.generation,
		Spec: json.RawMessage(r.spec), Status: json.RawMessage(r.status), Wire: wire,
		CreatedAt: r.created.UTC(), UpdatedAt: r.updated.UTC(), DeletedAt: utc(r.deleted), Removed: *r.removed,
		token: *r.token, head: head,
	}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

const (
	getSQL    = `select ` + columns + ` from document d where kind = $1 and id = $2`
	wireSQL   = `select d.kind, d.id, d.scope, d.version, d.head, d.wire from document d where kind = $1 and id = $2 and removed_at is null`
	lockSQL   = getSQL + ` for update`
	byNameSQL = `select ` + columns +
		` from document d where kind = $1 and scope = $2 and name = $3 and name <> '' and removed_at is null and deleted_at is null`
)

// querier is a connection, or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readOne runs a query for one document, which may be a tombstone. found is false without a row.
func readOne(ctx context.Context, conn querier, sql string, args ...any) (Document, bool, error) {
	var r documentRow
	err := conn.QueryRow(ctx, sql, args...).Scan(r.targets(&r.head, &r.wire)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return Document{}, false, nil
	}
	if err != nil {
		return Document{}, false, err
	}
	return r.document(), true, nil
}

// Get returns a document, also one whose deletion was requested, or ErrNotFound.
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

// GetWire is Get for callers who only pass Wire on: the Document has Kind, ID, Scope, Version and Wire. It costs half,
// because PostgreSQL need not write spec and status as text.
func (s *Store) GetWire(ctx context.Context, kind Kind, id string) (d Document, err error) {
	found := true
	var head, wire []byte
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, wireSQL, string(kind), id).Scan((*string)(&d.Kind), &d.ID, &d.Scope, &d.Version, &head, &wire)
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
	d.Wire, d.head = joinWire(head, wire)
	return d, nil
}

// GetByName returns the document that has the name in that scope, or ErrNotFound. One whose
// deletion was requested has no name any more.
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

func (s *Store) lookup(ctx context.Context, sql string, args ...any) (doc Document, found bool, err error) {
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		doc, found, err = readOne(ctx, c, sql, args...)
		return err
	})
	return doc, found, err
}
