package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// statusSQL reads the columns that a change of the status needs. PostgreSQL stores spec and head outside of the row,
// and tells the length of the head without reading it.
const statusSQL = `select d.scope, d.name, d.version, d.generation, d.status, d.detail, octet_length(d.head), d.wire,
	d.created_at, d.updated_at, d.deleted_at, d.token, d.observed from document d
	where kind = $1 and id = $2 and removed_at is null`

// GetStatus is Get for a caller that uses no spec and changes at most the status, by UpdateFrom. The document may be
// partial: then Spec is nil, and Wire has only the part after the head (see KindSpec.Head). UpdateFrom accepts a
// partial document. When PostgreSQL has the wire form in one part, as for a kind without Head, GetStatus returns a
// whole one.
func (s *Store) GetStatus(ctx context.Context, kind Kind, id string) (Document, error) {
	d := Document{Kind: kind, ID: id}
	found, isWhole := true, false
	err := s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		var status, wire, observed []byte
		var detail unpackedText
		var head *int
		var created, updated time.Time
		var deleted *time.Time
		err := c.QueryRow(ctx, statusSQL, string(kind), id).Scan(&d.Scope, &d.Name, &d.Version, &d.Generation, &status,
			&detail, &head, &wire, &created, &updated, &deleted, &d.token, &observed)
		if found = !errors.Is(err, pgx.ErrNoRows); !found {
			return nil
		}
		if isWhole = head == nil || *head == 0 || len(wire) == 0 || wire[0] != splitMark; isWhole || err != nil {
			return err
		}
		d.Status, d.Wire, d.head, d.isPartial = joinStatus(status, detail), wire[1:], *head, true
		d.CreatedAt, d.UpdatedAt, d.DeletedAt = created.UTC(), updated.UTC(), utc(deleted)
		d, err = s.complete(d, observed, nil)
		return err
	})
	switch {
	case err != nil:
		return Document{}, fmt.Errorf("getting the status of %s %s: %w", kind, id, err)
	case !found:
		return Document{}, fmt.Errorf("getting the status of %s %s: %w", kind, id, ErrNotFound)
	case isWhole:
		return s.Get(ctx, kind, id)
	}
	return d, nil
}

// IsPartial reports whether a document of GetStatus, or of UpdateFrom after it, has no Spec and only the end of Wire.
func (d Document) IsPartial() bool { return d.isPartial }

// tail returns the wire form without its head.
func (d Document) tail() []byte {
	if d.isPartial {
		return d.Wire
	}
	return d.Wire[d.head:]
}

// errPartial is the error of a change that needs a whole document and got a partial one. The store then reads the
// whole document and calls the change again.
var errPartial = errors.New("the change needs more of the document than its status")

// checkPartial returns errPartial if cur is partial and its change to next needs spec or head: a removal, a new spec,
// a requested deletion, a kind without Tail, or an audited change. It returns ErrInvalid if cur is whole and next is
// partial, and nil otherwise.
func (k *KindSpec) checkPartial(ctx context.Context, cur, next Document, goal goal) error {
	switch {
	case !cur.isPartial && next.isPartial:
		return fmt.Errorf("%w: the change put a partial document in the place of a whole one", ErrInvalid)
	case !cur.isPartial:
		return nil
	case goal == modify && next.isPartial && next.Spec == nil && (next.DeletedAt == nil) == (cur.DeletedAt == nil) &&
		k.Tail != nil && ActorFrom(ctx).Audit == "": // the record of an audited change has a hash of the spec
		return nil
	}
	return errPartial
}
