package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// listReader reads the rows of the statement of a list.
type listReader struct {
	store             *Store
	query             Query
	page              Page
	at                position // the statement's snapshot
	inserted, flushed uint64   // positions in the WAL
}

// listMeta and listColumns are how many columns come before the document, and how many it has.
const (
	listMeta    = 5
	listColumns = 18
)

// read reads all rows into the page, and closes rows.
func (r *listReader) read(rows pgx.Rows) error {
	defer rows.Close()
	var incarnation, snapshot string
	var total *int
	meta := []any{&incarnation, &snapshot, &r.inserted, &r.flushed, &total}
	var scan documentRow
	targets := append(meta, scan.listTargets(r.query)...)
	keys := len(r.query.keys())
	targets = append(targets, make([]any, keys)...) // the keys are not scanned
	last := make([][]byte, keys)
	size := 0
	isFull := func() bool {
		return len(r.page.Documents) == r.query.Limit || r.query.Bytes > 0 && size >= r.query.Bytes
	}
	for rows.Next() {
		raw := rows.RawValues()
		if isFull() {
			if r.page.Next == "" { // this is the document after the page
				r.page.Next = encodeAfter(last)
				total = nil
				if err := rows.Scan(append(meta, make([]any, len(raw)-listMeta)...)...); err != nil {
					return err
				}
			}
			continue
		}
		into := targets
		if raw[listMeta] == nil { // no document
			into = append(meta, make([]any, len(raw)-listMeta)...)
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if raw[listMeta] == nil {
			continue
		}
		d, err := scan.document(r.store)
		if err != nil {
			return err
		}
		size += len(d.Spec) + len(d.Status) + len(d.Wire)
		r.page.Documents = append(r.page.Documents, d)
		if isFull() {
			for i, key := range raw[listMeta+listColumns:] {
				last[i] = bytes.Clone(key) // nil is null, and an empty text is not
			}
		}
		for i := range meta[:listMeta-1] {
			targets[i] = nil // the same in each row
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if r.query.Count {
		if r.page.Total = len(r.page.Documents); total != nil {
			r.page.Total = *total
		}
	}
	var err error
	if r.at, err = newPosition(incarnation, snapshot); err != nil {
		return fmt.Errorf("%w: a restore is in progress", ErrUnavailable)
	}
	return nil
}

// documentRow scans the columns of a document. Only deleted_at can be null, and the columns that
// Query.WireOnly leaves out. One documentRow can scan one row after the other.
type documentRow struct {
	kind                string
	id, scope, name     string
	version, generation int64
	spec, status        []byte
	detail              unpackedText
	head, wire, sealed  []byte
	observed            []byte
	created, updated    time.Time
	deleted             *time.Time
	removed             bool
	token               int64
}

func (r *documentRow) targets(head, wire any) []any {
	return []any{&r.kind, &r.id, &r.scope, &r.name, &r.version, &r.generation, &r.spec, &r.status, &r.detail, head, wire,
		&r.created, &r.updated, &r.deleted, &r.removed, &r.token, &r.sealed, &r.observed}
}

// listTargets are the targets of Query.listed.
func (r *documentRow) listTargets(q Query) []any {
	// joinWire copies these from the driver's memory.
	head, wire := (*pgtype.DriverBytes)(&r.head), (*pgtype.DriverBytes)(&r.wire)
	if !q.WireOnly {
		return r.targets(head, wire)
	}
	return []any{&r.kind, &r.id, &r.scope, &r.name, &r.version, nil, nil, nil, nil, head, wire, nil, nil, &r.deleted, nil,
		nil, &r.sealed, &r.observed}
}

// document returns the document with its sensitive values, or an error of complete.
func (r *documentRow) document(s *Store) (Document, error) {
	wire, head := joinWire(r.head, r.wire)
	return s.complete(Document{
		Kind: Kind(r.kind), ID: r.id, Scope: r.scope, Name: r.name, Version: r.version, Generation: r.generation,
		Spec: json.RawMessage(r.spec), Status: joinStatus(r.status, r.detail), Wire: wire, CreatedAt: r.created.UTC(),
		UpdatedAt: r.updated.UTC(), DeletedAt: utc(r.deleted), Removed: r.removed, token: r.token, head: head,
	}, r.observed, r.sealed)
}
