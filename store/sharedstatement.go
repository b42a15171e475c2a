package store

import (
	"fmt"
	"strings"
	"time"
)

// sharedStatement writes several documents. Its arguments are arrays, with one element for each write, or for each
// record in the history. It returns the tokens of the writes that it has done.
type sharedStatement struct {
	sql     string
	columns []sharedColumn // of the arguments of one write
}

// sharedColumn is one argument of the writes: its name in the statement, its type, and what collects it.
type sharedColumn struct {
	name, sqlType string
	newColumn     func() column
}

// column collects an argument of several writes in an array. A nil argument is null.
type column interface {
	add(argument any)
	array() any
}

// columnOf is a column whose arguments are of type T or nil. add panics for another type.
type columnOf[T any] struct{ values []T }

func (c *columnOf[T]) add(argument any) {
	var v T
	if argument != nil {
		v = argument.(T)
	}
	c.values = append(c.values, v)
}

func (c *columnOf[T]) array() any { return c.values }

// nullableText is a column of strings that may be null.
type nullableText struct{ columnOf[*string] }

func (c *nullableText) add(argument any) {
	if text, ok := argument.(string); ok {
		argument = &text
	}
	c.columnOf.add(argument)
}

// textArrays is a column of arrays of texts, as PostgreSQL's literals: it has no type for arrays of arrays of several
// lengths.
type textArrays struct{ columnOf[*string] }

func (c *textArrays) add(argument any) {
	words, _ := argument.([]string)
	if words == nil {
		c.columnOf.add(nil)
		return
	}
	literal := arrayLiteral(words)
	c.columnOf.add(&literal)
}

var literalEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// arrayLiteral returns the text of an array of texts.
func arrayLiteral(words []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, word := range words {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		_, _ = literalEscapes.WriteString(&b, word) // a Builder returns no errors
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

func textColumn(name string) sharedColumn {
	return sharedColumn{name, "text", func() column { return &columnOf[string]{} }}
}

func nullableColumn(name string) sharedColumn {
	return sharedColumn{name, "text", func() column { return &nullableText{} }}
}

func numberColumn(name string) sharedColumn {
	return sharedColumn{name, "bigint", func() column { return &columnOf[int64]{} }}
}

// jsonColumn is sent as text, because the driver would quote JSON within an array.
func jsonColumn(name string) sharedColumn {
	return sharedColumn{name, "text", func() column { return &columnOf[[]byte]{} }}
}

func bytesColumn(name string) sharedColumn {
	return sharedColumn{name, "bytea", func() column { return &columnOf[[]byte]{} }}
}

func timeColumn(name string) sharedColumn {
	return sharedColumn{name, "timestamptz", func() column { return &columnOf[time.Time]{} }}
}

func nullableTimeColumn(name string) sharedColumn {
	return sharedColumn{name, "timestamptz", func() column { return &columnOf[*time.Time]{} }}
}

func textsColumn(name string) sharedColumn {
	return sharedColumn{name, "text", func() column { return &textArrays{} }}
}

// sharedColumns returns the columns of a write: those that all writes have, and in their midst the three that only
// creations or only changes have.
func sharedColumns(more ...sharedColumn) []sharedColumn {
	columns := []sharedColumn{textColumn("kind"), textColumn("id"), numberColumn("version"), numberColumn("generation"),
		jsonColumn("spec"), jsonColumn("status"), bytesColumn("wire"), timeColumn("at"), numberColumn("token")}
	return append(append(columns, more...), bytesColumn("head"), textsColumn("facets"), bytesColumn("detail"),
		bytesColumn("sealed"), nullableColumn("sealed_with"))
}

// historyColumns are the arguments of a record in the history.
var historyColumns = []sharedColumn{numberColumn("token"), timeColumn("at"), textColumn("principal"),
	textColumn("account"), textColumn("request_id"), textColumn("action"), nullableColumn("audit"), jsonColumn("spec"),
	jsonColumn("status"), bytesColumn("packed_spec"), bytesColumn("packed")}

// sharedLockTimeout is how long, in milliseconds, a group waits for another transaction that is creating one of its
// documents, or one with the same name. It is shorter than PostgreSQL's deadlock_timeout.
const sharedLockTimeout = "50"

var (
	// sharedInsert is insertSQL for several documents.
	sharedInsert = newSharedStatement(sharedColumns(textColumn("scope"), textColumn("name"),
		nullableTimeColumn("deleted_at")), `insert into document as d (kind, id, version, generation, spec, status, wire,
			created_at, updated_at, token, scope, name, deleted_at, head, facets, detail, sealed, sealed_with)
		select u.kind, u.id, u.version, u.generation, u.spec::jsonb, u.status::jsonb, u.wire, u.at, u.at, u.token, u.scope,
			u.name, u.deleted_at, u.head, u.facets::text[], u.detail, u.sealed, u.sealed_with
		from (select set_config('lock_timeout', '`+sharedLockTimeout+`', true)) l, %s on conflict do nothing`)

	// sharedUpdate is updateSQL for several documents. It leaves out documents that have changed, and those whose rows
	// are locked.
	sharedUpdate = newSharedStatement(sharedColumns(nullableTimeColumn("deleted_at"), numberColumn("before"),
		numberColumn("before_token")), `update document d set version = u.version, generation = u.generation,
			spec = coalesce(u.spec::jsonb, d.spec), status = coalesce(u.status::jsonb, d.status), wire = u.wire,
			updated_at = u.at, token = u.token, deleted_at = u.deleted_at, head = coalesce(u.head, d.head),
			facets = coalesce(u.facets::text[], d.facets),
			detail = case when u.status is null then d.detail else u.detail end,
			sealed = case when u.spec is null then d.sealed else u.sealed end,
			sealed_with = case when u.spec is null then d.sealed_with else u.sealed_with end, observed = null,
			xid = pg_current_xact_id()
		from (select d.ctid as place, u.* from %s
			join document d on d.kind = u.kind and d.id = u.id and d.version = u.before and d.token = u.before_token
				and d.removed_at is null
			for no key update of d skip locked) u
		where d.ctid = u.place`)
)

// newSharedStatement makes a statement of a change, in which %s stands for the arguments, as the table u.
func newSharedStatement(columns []sharedColumn, change string) *sharedStatement {
	return &sharedStatement{columns: columns, sql: `with w as (` + fmt.Sprintf(change, unnest("u", columns, 1)) + `
			returning d.token, d.kind, d.id, d.scope, d.version, d.generation),
		h as (insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id, spec,
				status, packed_spec, packed, audit, token)
			select r.at, r.action, w.kind, w.id, w.scope, w.version, w.generation, r.principal, r.account, r.request_id,
				r.spec::jsonb, r.status::jsonb, r.packed_spec, r.packed, r.audit, w.token
			from w join ` + unnest("r", historyColumns, len(columns)+1) + ` on r.token = w.token)
		select token from w`}
}

// unnest returns the SQL of a table whose columns are arguments, of which the first has the number first. The subquery
// hides the length of the arrays from the planner: it would otherwise make a plan for each length, which costs more
// than the statement, because one for few rows looks cheaper than the general one.
func unnest(alias string, columns []sharedColumn, first int) string {
	var args, names []string
	for i, c := range columns {
		args = append(args, fmt.Sprintf("$%d::%s[]", first+i, c.sqlType))
		names = append(names, c.name)
	}
	args[0] = "(select " + args[0] + ")"
	return "unnest(" + strings.Join(args, ", ") + ") as " + alias + " (" + strings.Join(names, ", ") + ")"
}

// arguments returns the arguments of the statement for those writes of a group that have this form; nil: there is none.
func (st *sharedStatement) arguments(group []*sharedWrite) []any {
	var columns []column
	for _, c := range st.columns {
		columns = append(columns, c.newColumn())
	}
	for _, c := range historyColumns {
		columns = append(columns, c.newColumn())
	}
	found := false
	for _, w := range group {
		if w.shared != st {
			continue
		}
		found = true
		for i := range st.columns {
			columns[i].add(w.args[i])
		}
		for i, argument := range w.recordArguments(len(st.columns)) {
			columns[len(st.columns)+i].add(argument)
		}
	}
	if !found {
		return nil
	}
	args := make([]any, len(columns))
	for i, c := range columns {
		args[i] = c.array()
	}
	return args
}

// recordArguments returns the arguments for historyColumns; nil: the write has no record. w.args[first:] are those of
// its record, see composeRecorded.
func (w *sharedWrite) recordArguments(first int) []any {
	if w.record == noRecord {
		return nil
	}
	of := w.args[first:]
	args := []any{w.token, w.args[7], of[0], of[1], of[2], of[3], of[4], nil, nil, nil, nil}
	switch w.record {
	case jsonRecord:
		args[7], args[8] = w.args[4], of[5]
	case packedRecord:
		args[9], args[10] = of[5], of[6]
	}
	return args
}
