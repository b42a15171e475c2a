package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Fragment is a condition in SQL about the table document, whose alias is d. $1, $2 and so on stand
// for its arguments. Code makes it (package search); a client's text appears in Args only.
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
	Kinds   []Kind   // instead of Kind: documents of any of these; not for Stream
	Scope   string   // "": all
	Where   Fragment // without SQL: all
	OrderBy []Order  // List adds the id as the last key, so that no two documents are equal
	Limit   int      // default 100
	Bytes   int      // 0: no bound; otherwise the page ends, with Next, after the document that reaches this size
	Offset  int      // how many documents to leave out, for pages by number
	After   string   // Page.Next of the page before, which had the same query
	Count   bool     // set Page.Total
	// Deletion chooses documents by whether their deletion was requested; by default those without
	// are listed.
	Deletion Deletion
	// ChangedSince leaves out documents whose last change the cursor sees; a cursor of another
	// incarnation of the database sees none. The list is in the order of the feed and costs as much
	// as it has documents; a document that changes while the caller reads page after page may come
	// twice. OrderBy, Offset and Count must not be set. A list has no tombstones, so this does not
	// replace Follow. "": all documents.
	ChangedSince Cursor
	// WireOnly is for callers that use only Wire: it leaves Spec, Status, Generation, CreatedAt and UpdatedAt out.
	// WithoutSpec leaves Spec out.
	WireOnly, WithoutSpec bool
}

// Deletion selects documents by whether their deletion was requested.
type Deletion int

// The choices.
const (
	WithoutDeleting Deletion = iota
	WithDeleting
	OnlyDeleting
)

// Page is a part of a list. Its fields are from one snapshot.
type Page struct {
	Documents []Document
	Total     int    // of documents that match, in all pages; 0 if Query.Count is not set
	Next      string // "" on the last page
	// Cursor is the place in the feed from which Follow sends all changes after the page's
	// snapshot; "" when the disk is full.
	Cursor Cursor
}

// List returns a page of documents, in the order of the query. No match is an empty page and no
// error. It returns ErrInvalid for a malformed After and for a kind that is not one of the store's.
// It never returns tombstones.
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
	if err := q.checkChangedSince(); err != nil {
		return page, err
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	sql, args, err := q.buildSQL()
	if err != nil {
		return page, err
	}
	var r listReader
	safe := false
	err = s.read(ctx, s.pool, func(ctx context.Context, c *pgx.Conn) error {
		r = listReader{query: q, store: s}
		rows, err := c.Query(ctx, sql, append([]any{q.execMode()}, args...)...)
		if err != nil {
			return err
		}
		if err := r.read(rows); err != nil {
			return err
		}
		// See follower.safe: a cursor that leaves the process must be one that a crash of the
		// server cannot make wrong.
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

// maxPrepared is the longest condition of a list that is prepared. Each connection keeps its
// prepared statements, and each search may be another statement.
const maxPrepared = 256

// execMode returns how the driver sends the statement of a list. PostgreSQL plans a prepared
// statement once, or again for each execution where that costs less; a statement that is described
// only is planned each time.
func (q Query) execMode() pgx.QueryExecMode {
	if q.Offset == 0 && len(q.Where.SQL) <= maxPrepared {
		return pgx.QueryExecModeCacheStatement
	}
	return pgx.QueryExecModeCacheDescribe
}

// buildSQL returns the statement of a list. Its columns are those of cursorPartsSQL, the total, the
// document and the keys of the order.
func (q Query) buildSQL() (sql string, args []any, err error) {
	args = append(args, q.Where.Args...)
	arg := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	b := listBuilder{Query: q, matching: q.whereSQL(arg)}
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
	if q.isTallied() {
		b.total = "(" + q.tallySQL() + ")"
	}
	next := ""
	if q.After != "" {
		after, err := decodeAfter(q.After, len(order))
		if err != nil {
			return "", nil, err
		}
		next = " and " + keysetSQL(order, after, arg)
	}
	if at, err := q.ChangedSince.position(); err == nil {
		return b.changedPageSQL(at, next, arg), args, nil
	}
	b.page = b.matching + next
	if q.Offset == 0 && (q.After == "" && q.Bytes == 0 || !q.Count) {
		return b.firstPageSQL(), args, nil
	}
	return b.numberedPageSQL(arg), args, nil
}

// listBuilder has the parts of the statement of a list, in SQL.
type listBuilder struct {
	Query
	matching string // the condition for the documents of all pages
	page     string // the condition for this page
	total    string // the subquery that counts the documents of all pages
	keys     string // the keys of the order, as columns
	texts    string // the keys as text, as columns
	order    string // the order of the rows of the page
}

// cursorPartsSQL is one row with the parts of a cursor at the statement's snapshot. Because of its limit
// PostgreSQL computes it once.
const cursorPartsSQL = `(select incarnation, pg_current_snapshot()::text as snap, (pg_current_wal_insert_lsn() - '0/0')::bigint as inserted,
		(pg_current_wal_flush_lsn() - '0/0')::bigint as flushed from store_meta limit 1) m`

// firstPageSQL returns the statement of the first page, or of the page after a key. PostgreSQL
// reads such a page in the order of an index. The outer select has an order, too, because a join
// guarantees none. PostgreSQL counts the documents only if the list has more than this page.
func (b listBuilder) firstPageSQL() string {
	total := "0"
	if b.Count {
		total = b.total
		if !b.isTallied() {
			total = "case when row_number() over (order by " + b.order + ") > " + strconv.Itoa(b.Limit) + " then " +
				total + " end"
		}
	}
	return `select m.incarnation, m.snap, m.inserted, m.flushed, ` + total + `, ` +
		strings.ReplaceAll(b.listed(), "d.", "p.") + b.texts + `
		from ` + cursorPartsSQL + ` left join lateral (select ` + b.rowColumns() + b.keys + ` from document d where ` +
		b.page + `
			order by ` + orderSQL(b.Query.keys()) + ` limit ` + strconv.Itoa(b.Limit+1) + `) p on true
		order by ` + b.order
}

// numberedPageSQL returns the statement of a page by its number. The inner select finds the ids of
// the page, if possible in an index alone; the outer select reads the documents.
func (b listBuilder) numberedPageSQL(arg func(any) string) string {
	kind := "d.kind"
	if names := b.kinds(); len(names) == 1 {
		kind = "'" + string(names[0]) + "'::text"
	}
	limit, offset := strconv.Itoa(b.Limit+1), arg(b.Offset)
	total := "0"
	if b.Count {
		total = b.total
		if b.After == "" && !b.isTallied() {
			// The last page gives the total without a count: the offset and the rows of the page.
			rows := "(select count(*) from page)"
			total = "case when " + rows + " < " + limit + " and (" + rows + " > 0 or " + offset +
				"::int = 0) then " + offset + "::int + " + rows + " else " + total + " end"
		}
	}
	return `with page as materialized (select ` + kind + ` as kind, d.id` + b.keys + ` from document d where ` +
		b.page + `
			order by ` + orderSQL(b.Query.keys()) + ` limit ` + limit + ` offset ` + offset + `)
		select m.incarnation, m.snap, m.inserted, m.flushed, ` + total + `, ` + b.listed() + b.texts + `
		from ` + cursorPartsSQL + ` left join page p on true left join document d on d.kind = p.kind and d.id = p.id
		order by ` + b.order
}

// kinds returns the kinds of the query, at least one.
func (q Query) kinds() []Kind {
	if len(q.Kinds) > 0 {
		return q.Kinds
	}
	return []Kind{q.Kind}
}

// whereSQL returns the condition that a document matches. It contains the kinds as literals and not
// as arguments, so that PostgreSQL can use the indexes of one kind. arg adds an argument and
// returns its placeholder.
func (q Query) whereSQL(arg func(any) string) string {
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
	if q.Where.SQL != "" {
		where += " and (" + q.Where.SQL + ")"
	}
	return where
}

// keys returns the keys of the order with the id as the last. The id has the direction of the key
// before it, so that one index serves both directions. A list of changes has the order of the feed.
func (q Query) keys() []Order {
	if q.listsChanges() {
		return feedOrder
	}
	id := Order{Expr: "d.id", Type: "text"}
	if n := len(q.OrderBy); n > 0 {
		id.Desc = q.OrderBy[n-1].Desc
	}
	return append(append([]Order{}, q.OrderBy...), id)
}

// neverNull has the columns that are never null.
var neverNull = map[string]bool{
	"d.kind": true, "d.id": true, "d.scope": true, "d.name": true, "d.version": true, "d.generation": true,
	"d.created_at": true, "d.updated_at": true, "f.xid": true, "f.kind": true, "f.id": true,
}

// direction returns the direction of the key. It names the place of nulls only if the key can be null,
// because PostgreSQL could not read an index backwards otherwise: there nulls are first.
func (o Order) direction() string {
	switch {
	case !o.Desc:
		return " asc" // nulls last
	case neverNull[o.Expr]:
		return " desc"
	}
	return " desc nulls last"
}

// orderSQL returns the list of an "order by".
func orderSQL(keys []Order) string {
	var by []string
	for _, o := range keys {
		by = append(by, "("+o.Expr+")"+o.direction())
	}
	return strings.Join(by, ", ")
}

// isTallied reports whether the table tally has the number of documents that match.
func (q Query) isTallied() bool {
	return q.Scope == "" && q.ChangedSince == "" && q.Where.SQL == "" && q.Deletion == WithDeleting
}

// tallySQL returns a select that counts the documents of the query's kinds. Each creation and
// removal adds a row to the table; Store.foldTally adds rows up.
func (q Query) tallySQL() string {
	return "select coalesce(sum(n), 0)::bigint from tally where kind in (" + q.kindList() + ")"
}

// kindList returns the kinds as a list of SQL literals. A kind has letters and digits only.
func (q Query) kindList() string {
	names := make([]string, len(q.kinds()))
	for i, k := range q.kinds() {
		names[i] = "'" + string(k) + "'"
	}
	return strings.Join(names, ", ")
}

// columns returns the columns of a document for a list without WireOnly. A list has no tombstones.
func (q Query) columns() string {
	cols := strings.Replace(columns, "d.removed_at is not null", "false", 1)
	if q.WithoutSpec {
		cols = strings.Replace(cols, "d.spec, d.status", "null::jsonb, d.status", 1)
	}
	return cols
}

// wireColumns are the columns of a document with WireOnly, in the order of columns. Each value that is not null
// costs PostgreSQL and the driver some time, and so do its copies in a sort.
const wireColumns = `d.kind, d.id, d.scope, d.name, d.version, null::bigint, null::jsonb, null::jsonb, null::bytea,
	d.head, d.wire, null::timestamptz, null::timestamptz, d.deleted_at, null::boolean, null::bigint, d.sealed,
	d.observed`

// wireRowColumns are the columns of the table that wireColumns has.
const wireRowColumns = `d.kind, d.id, d.scope, d.name, d.version, d.head, d.wire, d.deleted_at, d.sealed, d.observed`

// listed returns the columns of a document for List and Stream.
func (q Query) listed() string {
	if q.WireOnly {
		return wireColumns
	}
	return q.columns()
}

// rowColumns returns the columns of the table that listed has, for a subquery.
func (q Query) rowColumns() string {
	if q.WireOnly {
		return wireRowColumns
	}
	return "d.*"
}
