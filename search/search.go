// Package search turns the search languages of Maestro's and HyperFleet's lists into SQL: the tree
// search language (TSL), and the SQL-like language with JSON paths that Maestro's clients write
// when they search by labels.
//
// It works in three pure steps. Parse reads a text into a tree and knows no fields; Bind checks the
// tree against the fields of one list and gives every value a type; SQL renders the bound tree.
// Names and values of the text reach the database as bound arguments only, never as SQL. Match
// evaluates the same bound tree on a row in memory: watches filter with it, and tests check the SQL
// against it. The steps take linear time in the length of the text; Limits bound the work of the
// database.
//
// The services clm and maestro declare their lists as a Schema: fields, types, operators, columns,
// limits and orders. Schema.Parse does the first two steps at once.
//
// It is a tool: it knows no service and imports only internal packages of Atoll.
package search

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Fragment is a condition in SQL. $1, $2 and so on stand for its arguments. A Fragment converts to
// a store.Fragment.
type Fragment struct {
	SQL  string
	Args []any
}

// Type is the type of a field's SQL expression.
type Type int

// The types of fields.
const (
	Text Type = iota + 1 // text; ordered by bytes
	Int                  // bigint
	Time                 // timestamptz
	Bool                 // boolean
	JSON                 // jsonb
)

func (t Type) String() string {
	switch t {
	case Text:
		return "a text"
	case Int, float:
		return "a number"
	case Time:
		return "a time"
	case Bool:
		return "true or false"
	case JSON, dynamic:
		return "JSON"
	}
	return "nothing"
}

// Field is a field by which clients can search a list.
type Field struct {
	SQL  string // its expression in SQL, such as "d.scope"; never a client's text
	Type Type
	// Dotted allows names of members of a JSON field: properties.a.b is the member b of the member
	// a. Its type is that of the value with which it is compared: a text, a number or a boolean.
	Dotted bool
	// Flat makes the whole text after the first dot the name of one member, as in labels.
	Flat bool
	// Within returns the field for the parts of a name after the first dot, for fields whose parts
	// are not members of JSON; ok is false when there is none. The parts keep the case of the text.
	// Within has precedence over Dotted.
	Within func(parts []string) (f Field, ok bool)
	// StringMaps are the paths, below a JSON field, of objects whose values are all strings, such
	// as labels. The SQL for the equality of their members is in a form that a GIN index on the
	// object serves.
	StringMaps [][]string
	// Pairs means that the index is a GIN index on PairsSQL of the object, and not on the object.
	Pairs bool

	// Equal is a condition in SQL that the field equals a text, with %s for the text, in a form
	// that an index serves. It replaces the comparison of the expression SQL, except below "not".
	Equal string

	// What the contract of the list allows less than the language.
	Ops      []string // the allowed operators, of = <> < <= > >= like ilike ~ in between is @>; nil: all
	Positive bool     // the field cannot stand below "not"
	Enum     []string // the allowed values; nil: all
}

// Limits bound a search. The zero value of each is its default.
type Limits struct {
	Bytes  int // of the text; default 4096
	Depth  int // of parentheses and "not"; default 32
	Terms  int // comparisons; all "a = value" of one field that "or" joins are one; default 100
	Values int // all values together; default 1000

	// Keyed are fields whose text after the first dot is one key, which may have the signs / and -:
	// labels.example.com/shard-a. Parse needs them, because after other fields these signs are
	// arithmetic.
	Keyed []string
}

func (l Limits) withDefaults() Limits {
	setDefault := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	setDefault(&l.Bytes, 4096)
	setDefault(&l.Depth, 32)
	setDefault(&l.Terms, 100)
	setDefault(&l.Values, 1000)
	return l
}

// Error is a mistake in a search text.
type Error struct {
	Column  int // in characters, from 1; 0 when the mistake has no place
	Message string
}

func (e *Error) Error() string {
	if e.Column == 0 {
		return e.Message
	}
	return fmt.Sprintf("at column %d: %s", e.Column, e.Message)
}

// Query is a parsed text. It is immutable; several goroutines may use it.
type Query struct {
	text   string
	limits Limits
	root   node // nil: the text is empty and every row matches
}

// Parse reads a search text. A text that has ->> or @> anywhere is in the language with JSON paths,
// every other text is TSL. An empty text matches every row. An error is an *Error.
func Parse(text string, limits Limits) (*Query, error) {
	q := &Query{text: text, limits: limits.withDefaults()}
	switch {
	case len(text) > q.limits.Bytes:
		return nil, &Error{Message: fmt.Sprintf("the search has %d bytes, at most %d are possible", len(text),
			q.limits.Bytes)}
	case !utf8.ValidString(text):
		return nil, &Error{Message: "the search is not valid UTF-8"}
	case strings.ContainsRune(text, 0):
		return nil, q.newError(strings.IndexByte(text, 0), "a NUL character")
	}
	p := &parser{scanner: scanner{text: text, jsonPaths: strings.Contains(text, "->>") || strings.Contains(text, "@>")},
		query: q}
	root, err := p.parseQuery()
	if err != nil {
		return nil, err
	}
	q.root = root
	return q, nil
}

// newError returns an error at a byte offset of the text.
func (q *Query) newError(pos int, format string, args ...any) *Error {
	pos = min(pos, len(q.text))
	return &Error{Column: utf8.RuneCountInString(q.text[:pos]) + 1, Message: fmt.Sprintf(format, args...)}
}

// shorten returns the first 40 bytes of a text, for an error message.
func shorten(s string) string {
	if len(s) <= 40 {
		return s
	}
	return strings.ToValidUTF8(s[:40], "") + "..."
}
