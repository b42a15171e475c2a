package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// write is one statement, with its arguments, that changes one document.
type write struct {
	kind     Kind
	id       string
	version  int64 // of the document after the write
	history  bool
	isSilent bool         // it makes no version, so the store wakes no followers
	observed *observation // the write in another form, in which it can share a statement; nil: it has none
	sql      string
	args     []any

	shared *sharedStatement // with which it shares a message with other writes; nil: it does not
	record recordForm
}

// Positions 1-9 are the same in all statements: kind, id, new version, new generation, spec, status, wire form after
// its head, time, token. The last three are the detail and the columns of sealed values. A null spec, status or head
// stands for the stored value, a null status also for the stored detail, and a null spec for the stored sealed values:
// an unchanged value is not sent, and PostgreSQL does not write a value again that
// it stores outside of the row.
const (
	insertSQL = `insert into document (kind, id, version, generation, spec, status, wire, created_at, updated_at, token,
			scope, name, deleted_at, head, facets, detail, sealed, sealed_with)
		values ($1, $2, $3, $4, $5::jsonb, $6::jsonb, $7, $8, $8, $9, $10, $11, $12, $13::bytea, $14::text[], $15::bytea,
			$16::bytea, $17::text)
		on conflict do nothing returning `
	insertArgs = 17

	// reviveSQL replaces a tombstone by a new document.
	reviveSQL = `update document set version = $3, generation = $4, spec = $5::jsonb, status = $6::jsonb, wire = $7, created_at = $8, updated_at = $8,
		token = $9, scope = $10, name = $11, deleted_at = $12, removed_at = null, head = $13::bytea, facets = $14::text[],
		detail = $16::bytea, sealed = $17::bytea, sealed_with = $18::text, observed = null, xid = pg_current_xact_id()
		where kind = $1 and id = $2 and version = $15 and removed_at is not null
		and not exists (select from document o where o.kind = $1 and o.scope = $10 and o.name = $11 and o.name <> '' and o.removed_at is null and o.deleted_at is null)
		returning `
	reviveArgs = 18

	// updateSQL changes a document, and removeSQL makes it a tombstone. Only removeSQL names removed_at: PostgreSQL would
	// prepare the trigger of removals for each statement that does.
	updateSQL = `update document set ` + changedColumns
	removeSQL = `update document set removed_at = $8, ` + changedColumns

	changedColumns = `version = $3, generation = $4, spec = coalesce($5::jsonb, spec), status = coalesce($6::jsonb, status),
		wire = $7, updated_at = $8, token = $9, deleted_at = $10, head = coalesce($13::bytea, head),
		facets = coalesce($14::text[], facets), detail = case when $6::jsonb is null then detail else $15::bytea end,
		sealed = case when $5::jsonb is null then sealed else $16::bytea end,
		sealed_with = case when $5::jsonb is null then sealed_with else $17::text end, observed = null,
		xid = pg_current_xact_id()
		where kind = $1 and id = $2 and version = $11 and token = $12 and removed_at is null returning `
	updateArgs = 17

	// observeSQL writes later times of observation without a new version. Its new token shows whether the write was
	// done, and makes concurrent writes fail that were composed from the state before.
	observeSQL = `update document set status = $4::jsonb, wire = $5, token = $6, head = coalesce($8::bytea, head),
		detail = $9::bytea, observed = null
		where kind = $1 and id = $2 and version = $3 and token = $7 and removed_at is null returning `
)

// statementForms are the statements of one change: without a record of the history, with a record, with a record whose
// spec and status are packed, and with a record of BriefHistory, which has neither. Each returns one row with the id of
// its transaction, or none if its condition found no row.
type statementForms struct {
	plain, recorded, packed, brief string

	shared *sharedStatement // the same change of several documents; nil: there is none
}

// recordForm is what the record of a write in the history has.
type recordForm uint8

const (
	noRecord recordForm = iota
	jsonRecord
	packedRecord
	briefRecord
)

// newStatementForms makes the statements of a change that has args arguments. The change ends with "returning".
func newStatementForms(change string, args int) statementForms {
	p := func(i int) string { return "$" + strconv.Itoa(args+i) }
	with := func(spec, status, packedSpec, packed string) string {
		return `with w as (` + change + `scope)
			insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id, spec,
				status, packed_spec, packed, audit, token)
			select $8, ` + p(4) + `, $1, $2, w.scope, $3, $4, ` + p(1) + `, ` + p(2) + `, ` + p(3) + `, ` + spec + `, ` + status + `, ` + packedSpec +
			`, ` + packed + `, ` + p(5) + `::text, $9 from w returning pg_current_xact_id()`
	}
	return statementForms{
		plain:    change + `pg_current_xact_id()`,
		recorded: with("$5::jsonb", p(6)+"::jsonb", "null::bytea", "null::bytea"),
		packed:   with("null::jsonb", "null::jsonb", p(6)+"::bytea", p(7)+"::bytea"),
		brief:    with("null::jsonb", "null::jsonb", "null::bytea", "null::bytea"),
	}
}

var (
	insertStatement = newStatementForms(insertSQL, insertArgs).sharing(sharedInsert)
	reviveStatement = newStatementForms(reviveSQL, reviveArgs)
	updateStatement = newStatementForms(updateSQL, updateArgs).sharing(sharedUpdate)
	removeStatement = newStatementForms(removeSQL, updateArgs)

	observeStatement = newStatementForms(observeSQL, 0).plain
)

// sharing returns the forms with a shared statement.
func (st statementForms) sharing(shared *sharedStatement) statementForms {
	st.shared = shared
	return st
}

// newToken returns a random token, by which the store finds the rows of a transaction whose answer was lost.
func newToken() int64 { return rand.Int64() }

// composeNew makes the write of a new document.
func (k *KindSpec) composeNew(ctx context.Context, st statementForms, next Document, spec, status json.RawMessage,
	token int64, action string, more ...any) (write, error) {
	return k.composeRecorded(ctx, st, nil, next, spec, status, status, token, action, more...)
}

// composeRecorded makes the write that stores next in the place of before, which is nil for a new document. spec and
// status are nil if they did not change. The history gets recorded as the status.
func (k *KindSpec) composeRecorded(ctx context.Context, st statementForms, before *Document, next Document,
	spec, status, recorded json.RawMessage, token int64, action string, more ...any) (w write, err error) {
	searched, detail, err := k.splitStatus(status)
	if err != nil {
		return w, err
	}
	spec = next.storedSpec(spec)
	args := append([]any{string(next.Kind), next.ID, next.Version, next.Generation, jsonArgument(spec),
		jsonArgument(searched), storedWire(next), next.UpdatedAt, token}, more...)
	column, key := next.sealedColumns()
	args = append(args, detail, column, key)
	w = write{kind: next.Kind, id: next.ID, version: next.Version, sql: st.plain, args: args, shared: st.shared}
	switch {
	case k.History && k.Recorded != nil:
		w.history, w.sql, w.record = true, st.packed, packedRecord
	case k.History:
		w.history, w.sql, w.record = true, st.recorded, jsonRecord
	case k.BriefHistory && (spec != nil || action != "update"):
		w.history, w.sql, w.record = true, st.brief, briefRecord
	default:
		return w, nil
	}
	a := ActorFrom(ctx)
	audit, err := k.encodeAuditDetail(a, before, next)
	if err != nil {
		return w, err
	}
	w.args = append(args, a.Principal, a.Account, a.RequestID, action, audit)
	switch w.record {
	case packedRecord:
		w.args = append(w.args, pack(spec), pack(recorded))
	case jsonRecord:
		w.args = append(w.args, jsonArgument(recorded))
	}
	return w, nil
}

// jsonArgument returns JSON as the argument of a statement; nil is null.
func jsonArgument(j json.RawMessage) any {
	if j == nil {
		return nil
	}
	return []byte(j)
}

// render sets the wire form of a document and the length of its head.
func (k *KindSpec) render(d *Document) error {
	d.Wire, d.head = []byte{}, 0
	if k.Render == nil {
		return nil
	}
	wire, err := k.renderText(d)
	if err != nil {
		return fmt.Errorf("%w: rendering: %w", ErrInvalid, err)
	}
	d.Wire = wire
	if k.Head != nil {
		d.head = k.Head(wire)
	}
	return nil
}

// renderText returns the wire form of a document, and keeps the sealed one.
func (k *KindSpec) renderText(d *Document) ([]byte, error) {
	if d.sealed != nil {
		return k.renderSealed(d)
	}
	return k.Render(*d)
}

// renderStatus is render for a change of the status alone: it keeps the head of cur if the kind has a Tail.
func (k *KindSpec) renderStatus(d *Document, cur Document) error {
	if k.Tail == nil || cur.head == 0 {
		return k.render(d)
	}
	tail, err := k.Tail(*d)
	if err != nil {
		return fmt.Errorf("%w: rendering: %w", ErrInvalid, err)
	}
	d.head, d.Wire = cur.head, tail
	if !cur.isPartial {
		d.Wire = slices.Concat(cur.Wire[:cur.head], tail)
	}
	return nil
}

// facets returns the content of the column facets; nil is null.
func (k *KindSpec) facets(d Document) []string {
	if k.Facets == nil {
		return nil
	}
	return k.Facets(d)
}

// changedFacets returns the facets of next, or nil if cur has the same. A document of a kind with heads that has no
// head may have been written by the release before, which left the facets of an earlier version in the row.
func (k *KindSpec) changedFacets(cur, next Document) []string {
	if k.Facets == nil {
		return nil
	}
	facets := k.Facets(next)
	if (k.Head == nil || cur.head > 0) && slices.Equal(k.Facets(cur), facets) {
		return nil
	}
	return append([]string{}, facets...)
}

// changedHead returns the head of a document's wire form, or nil if it is stored already.
func changedHead(cur, next Document) any {
	if cur.isPartial || cur.head == next.head && bytes.Equal(cur.Wire[:cur.head], next.Wire[:next.head]) {
		return nil
	}
	return next.Wire[:next.head]
}

// timeAfter returns the present time in microseconds, which PostgreSQL keeps, or the first microsecond after the given
// time if that is later.
func timeAfter(after time.Time) time.Time {
	t := time.Now().UTC().Truncate(time.Microsecond)
	if !t.After(after) {
		t = after.Add(time.Microsecond)
	}
	return t
}

// completeNew sets the version, generation, times and wire form of a new document. The document replaces tombstone,
// unless that is nil.
func (k *KindSpec) completeNew(d Document, tombstone *Document) (Document, error) {
	if d.ID == "" {
		return d, fmt.Errorf("%w: it has no id", ErrInvalid)
	}
	if d.Spec == nil {
		d.Spec = json.RawMessage("{}")
	}
	if d.Status == nil {
		d.Status = json.RawMessage("{}")
	}
	d.Version, d.Generation, d.Removed = 1, 1, false
	at := d.CreatedAt.UTC().Truncate(time.Microsecond)
	if d.CreatedAt.IsZero() {
		at = timeAfter(time.Time{})
	}
	if tombstone != nil {
		d.Version, d.Generation = tombstone.Version+1, tombstone.Generation+1
		at = timeAfter(tombstone.UpdatedAt)
	}
	d.CreatedAt, d.UpdatedAt = at, at
	if k.Begin != nil {
		if err := k.Begin(&d); err != nil {
			return d, err
		}
	}
	var err error
	if d.sealed, err = k.sealSpec(d); err != nil {
		return d, err
	}
	return d, k.render(&d)
}

// send sends one write on a connection. hit is false when the condition of the statement found no row.
func send(ctx context.Context, conn querier, w write) (hit bool, xid uint64, err error) {
	err = conn.QueryRow(ctx, w.sql, w.args...).Scan(&xid)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, 0, nil
	}
	return err == nil, xid, err
}

// autocommit sends one write as a transaction of its own, in one round trip. When the connection breaks it finds out
// whether the write was committed; it returns errNotWritten if it certainly was not.
func (s *Store) autocommit(ctx context.Context, w write, token int64) (hit bool, err error) {
	conn, err := s.acquire(ctx, s.pool)
	if err != nil {
		return false, err
	}
	wctx, cancel := s.uncancelled(ctx)
	hit, _, err = send(wctx, conn.Conn(), w)
	cancel()
	isBroken, session := isBroken(conn.Conn(), err), sessionOf(conn.Conn())
	conn.release()
	switch {
	case err == nil:
		if hit && !w.isSilent {
			s.notifyCommit(w.kind)
		}
		return hit, nil
	case !isBroken:
		return false, classify(context.WithoutCancel(ctx), err)
	}
	s.pool.Reset()
	return s.settle(w, token, session, err)
}

// settle finds out whether a write was committed whose connection broke with an error.
func (s *Store) settle(w write, token int64, in session, broken error) (hit bool, err error) {
	written, err := s.resolve(unansweredCommit{session: in, token: token, writes: []write{w}})
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: %w", err, broken)
	case !written:
		return false, fmt.Errorf("%w: %w", errNotWritten, broken)
	case !w.isSilent:
		s.notifyCommit(w.kind)
	}
	return true, nil
}

// errNotWritten is the error of a write that certainly did not happen, because the connection broke.
// The caller may send the write again.
var errNotWritten = fmt.Errorf("%w: the connection broke before the write", ErrUnavailable)

// isNameTaken reports whether err is a violation of the unique index of names.
func isNameTaken(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "23505" && pgErr.ConstraintName == "document_name"
}
