package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Fragment is a piece of SQL with its arguments, which it calls $1, $2 and so on. The table is document, alias d. It is
// made by code (package search), never by a user.
type Fragment struct {
	SQL  string
	Args []any
}

// Order is one key of an order. Nulls come last in both directions.
type Order struct {
	Expr string // SQL, without arguments: "d.created_at", "d.spec->>'name'"
	Type string // its SQL type: "timestamptz", "text"
	Desc bool
}

// Query selects the documents that List returns.
type Query struct {
	Kind    Kind
	Kinds   []Kind   // instead of Kind: any of these; not for Stream
	Scope   string   // "" is any
	Where   Fragment // "" matches all
	OrderBy []Order  // the id is always added as the last key, so that the order is total
	Limit   int      // default 100
	Bytes   int      // 0: no bound; otherwise the page ends, with Next, after the document that reaches this size
	Offset  int      // pages by number
	After   string   // pages by keyset: Page.Next of the page before, with the same query
	Count   bool     // fill in Page.Total
	// Deletion: documents whose deletion was requested are left out, unless this says otherwise.
	Deletion Deletion
	// ChangedSince leaves out documents whose last change the cursor sees; "" and a cursor of another incarnation of
	// the database see none. A list has no tombstones, so this does not replace Follow.
	ChangedSince Cursor
	// WireOnly leaves Spec and Status out, for callers who only pass Wire on.
	WireOnly bool
}

// Deletion chooses by whether deletion was requested.
type Deletion int

const (
	WithoutDeleting Deletion = iota
	WithDeleting
	OnlyDeleting
)

// Page is a part of a list. All of it is from one snapshot.
type Page struct {
	Documents []Document
	Total     int    // of documents that match, in all pages; 0 if Query.Count is not set
	Next      string // "" on the last page
	// Cursor is the place in the feed from which Follow brings all that changed after this page was read; "" when the
	// disk is full.
	Cursor Cursor
}

// List returns a page of documents. Documents, Total and Cursor are from one snapshot. A malformed After is ErrInvalid.
func (s *Store) List(ctx context.Context, q Query) (Page, error) {
	page, err := s.list(ctx, q)
	if err != nil {
		return Page{}, fmt.Errorf("listing %s: %w", q.Kind, err)
	}
	return page, nil
}

func (s *Store) list(ctx context.Context, q Query) (page Page, err error) {
	for _, k := range q.kinds() {
		if _, err := s.kind(k); err != nil {
			return page, err
		}
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	sql, args, err := q.build()
	if err != nil {
		return page, err
	}
	var r listReader
	safe := false
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		r = listReader{q: q}
		rows, err := c.Query(ctx, sql, append([]any{q.execMode()}, args...)...)
		if err != nil {
			return err
		}
		if err := r.read(rows); err != nil {
			return err
		}
		// See follower.safe: a cursor that leaves the process must be one that a crash of the server cannot make wrong.
		if safe = r.flushed >= r.inserted; !safe {
			_, err := c.Exec(ctx, flushSQL)
			safe = err == nil
		}
		return nil
	})
	if err != nil {
		return page, err
	}
	if safe {
		r.page.Cursor = r.at.cursor()
	}
	return r.page, nil
}

// maxPrepared is the longest condition of a list that is prepared. Each connection keeps its prepared statements, and
// each search may be another statement.
const maxPrepared = 256

// execMode returns how a list is sent. PostgreSQL plans a prepared statement once, or again for each execution where
// that costs less; a statement that is described only is planned each time.
func (q Query) execMode() pgx.QueryExecMode {
	if q.Offset == 0 && len(q.Where.SQL) <= maxPrepared {
		return pgx.QueryExecModeCacheStatement
	}
	return pgx.QueryExecModeCacheDescribe
}

// build makes the one statement. Its columns are the moment, the total, the document and the keys of the order.
func (q Query) build() (sql string, args []any, err error) {
	args = append(args, q.Where.Args...)
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	b := listBuilder{Query: q, matching: q.where(arg)}
	order := q.keys()
	for i, o := range order {
		key := "key" + strconv.Itoa(i)
		b.keys += ", (" + o.Expr + ") as " + key
		b.texts += ", p." + key + "::text"
		if i > 0 {
			b.order += ", "
		}
		b.order += "p." + key + o.direction()
	}
	b.total = "(select count(*) from document d where " + b.matching + ")"
	if q.tallied() {
		b.total = "(" + q.tally() + ")"
	}
	b.page = b.matching
	if q.After != "" {
		after, err := decodeAfter(q.After, len(order))
		if err != nil {
			return "", nil, err
		}
		b.page += " and " + keyset(order, after, arg)
	}
	if q.Offset == 0 && (q.After == "" && q.Bytes == 0 || !q.Count) {
		return b.first(), args, nil
	}
	return b.later(arg), args, nil
}

// listBuilder makes the statement of a list from its parts.
type listBuilder struct {
	Query
	matching string // the condition of all pages
	page     string // the condition of this page
	total    string // counts all pages
	keys     string // of the order, as columns
	texts    string // the keys as text
	order    string
}

// momentSQL is one row with the parts of a cursor at the statement's snapshot. Because of its limit PostgreSQL computes
// it once.
const momentSQL = `(select incarnation, pg_current_snapshot()::text as snap, (pg_current_wal_insert_lsn() - '0/0')::bigint as inserted,
		(pg_current_wal_flush_lsn() - '0/0')::bigint as flushed from store_meta limit 1) m`

// first makes the statement of a page at the beginning of a list, or behind a key: an index that has the order leads
// to the documents themselves. It is ordered again outside, because a join promises no order. Documents are counted
// only if there is one more than the page has.
func (b listBuilder) first() string {
	total := "0"
	if b.Count {
		total = b.total
		if !b.tallied() {
			total = "case when row_number() over (order by " + b.order + ") > " + strconv.Itoa(b.Limit) + " then " + total + " end"
		}
	}
	return `select m.incarnation, m.snap, m.inserted, m.flushed, ` + total + `, ` +
		strings.ReplaceAll(b.columns(), "d.", "p.") + b.texts + `
		from ` + momentSQL + ` left join lateral (select d.*` + b.keys + ` from document d where ` + b.page + `
			order by ` + orderSQL(b.Query.keys()) + ` limit ` + strconv.Itoa(b.Limit+1) + `) p on true
		order by ` + b.order
}

// later makes the statement of a page by its number. The page is found by its keys alone, from an index that has them
// if there is one, and what is on it is read after that.
func (b listBuilder) later(arg func(any) string) string {
	kind := "d.kind"
	if names := b.kinds(); len(names) == 1 {
		kind = "'" + string(names[0]) + "'::text"
	}
	limit, offset := strconv.Itoa(b.Limit+1), arg(b.Offset)
	total := "0"
	if b.Count {
		total = b.total
		if b.After == "" && !b.tallied() {
			// The number of a page that reaches the end gives the total without a count.
			rows := "(select count(*) from page)"
			total = "case when " + rows + " < " + limit + " and (" + rows + " > 0 or " + offset +
				"::int = 0) then " + offset + "::int + " + rows + " else " + total + " end"
		}
	}
	return `with page as materialized (select ` + kind + ` as kind, d.id` + b.keys + ` from document d where ` +
		b.page + `
			order by ` + orderSQL(b.Query.keys()) + ` limit ` + limit + ` offset ` + offset + `)
		select m.incarnation, m.snap, m.inserted, m.flushed, ` + total + `, ` + b.columns() + b.texts + `
		from ` + momentSQL + ` left join page p on true left join document d on d.kind = p.kind and d.id = p.id
		order by ` + b.order
}

func (q Query) kinds() []Kind {
	if len(q.Kinds) > 0 {
		return q.Kinds
	}
	return []Kind{q.Kind}
}

// where is the condition that a document matches. The kind is written into it, not an argument, so that indexes on the
// kind are used.
func (q Query) where(arg func(any) string) string {
	where := "d.kind in (" + q.kindList() + ") and d.removed_at is null"
	switch q.Deletion {
	case WithoutDeleting:
		where += " and d.deleted_at is null"
	case OnlyDeleting:
		where += " and d.deleted_at is not null"
	}
	if q.Scope != "" {
		where += " and d.scope = " + arg(q.Scope)
	}
	if at, err := q.ChangedSince.position(); err == nil {
		snapshot := arg(at.snapshot) + "::text::pg_snapshot"
		where += " and ((select incarnation from store_meta) <> " + arg(at.incarnation) +
			" or d.xid >= pg_snapshot_xmin(" + snapshot + ") and not pg_visible_in_snapshot(d.xid, " + snapshot + "))"
	}
	if q.Where.SQL != "" {
		where += " and (" + q.Where.SQL + ")"
	}
	return where
}

// keys are the keys of the order; it is total. The id goes the way of the key before it, so that one index serves both
// directions.
func (q Query) keys() []Order {
	id := Order{Expr: "d.id", Type: "text"}
	if n := len(q.OrderBy); n > 0 {
		id.Desc = q.OrderBy[n-1].Desc
	}
	return append(append([]Order{}, q.OrderBy...), id)
}

// present are the columns that are never null.
var present = map[string]bool{
	"d.kind": true, "d.id": true, "d.scope": true, "d.name": true, "d.version": true, "d.generation": true,
	"d.created_at": true, "d.updated_at": true,
}

// direction says where nulls go only if there can be any: an index that is read backwards has them first.
func (o Order) direction() string {
	switch {
	case !o.Desc:
		return " asc" // nulls last
	case present[o.Expr]:
		return " desc"
	}
	return " desc nulls last"
}

func orderSQL(keys []Order) string {
	var by []string
	for _, o := range keys {
		by = append(by, "("+o.Expr+")"+o.direction())
	}
	return strings.Join(by, ", ")
}

// tallied reports whether the table tally has the number of documents that match.
func (q Query) tallied() bool {
	return q.Scope == "" && q.ChangedSince == "" && q.Where.SQL == "" && q.Deletion == WithDeleting
}

// tally counts the documents of the query's kinds. Each creation and removal adds a row to the table; Store.foldTally
// adds rows up.
func (q Query) tally() string {
	return "select coalesce(sum(n), 0)::bigint from tally where kind in (" + q.kindList() + ")"
}

// kindList is the kinds as SQL has them in a list.
func (q Query) kindList() string {
	names := make([]string, len(q.kinds()))
	for i, k := range q.kinds() {
		names[i] = "'" + string(k) + "'"
	}
	return strings.Join(names, ", ")
}

// columns are those of a list: it has no tombstones.
func (q Query) columns() string {
	cols := strings.Replace(columns, "d.removed_at is not null", "false", 1)
	if q.WireOnly {
		cols = strings.Replace(cols, "d.spec, d.status", "null::jsonb, null::jsonb", 1)
	}
	return cols
}

// keyset returns the condition that a row comes after the given keys.
func keyset(order []Order, after []*string, arg func(any) string) string {
	if uniform(order) { // an index can begin there
		var exprs, values []string
		for i, o := range order {
			if after[i] == nil {
				return "false" // no page of ours ended so
			}
			exprs, values = append(exprs, o.Expr), append(values, arg(*after[i])+"::text::"+o.Type)
		}
		op := ") > ("
		if order[0].Desc {
			op = ") < ("
		}
		return "(" + strings.Join(exprs, ", ") + op + strings.Join(values, ", ") + ")"
	}
	var alternatives []string
	equal := ""
	for i, o := range order {
		expr := "(" + o.Expr + ")"
		if after[i] == nil { // nulls are last: nothing comes after one but another null
			equal += expr + " is null and "
			continue
		}
		value := arg(*after[i]) + "::text::" + o.Type
		op := " > "
		if o.Desc {
			op = " < "
		}
		alternatives = append(alternatives, "("+equal+"("+expr+op+value+" or "+expr+" is null))")
		equal += expr + " = " + value + " and "
	}
	return "(" + strings.Join(alternatives, " or ") + ")"
}

// uniform reports whether the order equals that of its keys as one row: all keys have one direction, and none is null.
func uniform(order []Order) bool {
	for _, o := range order {
		if !present[o.Expr] || o.Desc != order[0].Desc {
			return false
		}
	}
	return true
}

func encodeAfter(last [][]byte) string {
	keys := make([]*string, len(last))
	for i, k := range last {
		if k != nil {
			text := string(k)
			keys[i] = &text
		}
	}
	text, _ := json.Marshal(keys)
	return base64.RawURLEncoding.EncodeToString(text)
}

func decodeAfter(token string, n int) ([]*string, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	var keys []*string
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err == nil && (len(keys) != n || keys[n-1] == nil) {
		err = errors.New("it belongs to another query")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: page token: %w", ErrInvalid, err)
	}
	return keys, nil
}
