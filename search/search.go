// Package search turns the search languages of Maestro's and HyperFleet's
// lists into SQL: the tree search language (TSL), and the SQL-like language
// with JSON paths that Maestro's clients write when they search by labels.
//
// It works in three pure steps. Parse reads a text into a tree and knows no
// fields; Bind checks the tree against the fields of one list and gives every
// value a type; SQL renders the bound tree. Names and values of the text reach
// the database as bound arguments only, never as SQL. Match evaluates the same
// bound tree on a row in memory: watches search with it, and tests check the
// SQL against it. The steps take linear time in the length of the text; Limits
// bound the work of the database.
//
// It is a tool: it knows no service and imports no package of ours but
// internal ones.
package search

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Fragment is a condition in SQL with its arguments, which it calls $1, $2 and
// so on. It has the shape of store.Fragment and converts to it.
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

// Field is a field by which a list can be searched.
type Field struct {
	SQL  string // its expression, made by code: "d.scope"
	Type Type
	// Dotted lets names lead into a JSON field: properties.a.b is the member b
	// of the member a. Compared with a string it is a text, with a number a
	// number.
	Dotted bool
	// Flat: the whole text after the first dot is the name of one member, with
	// its dots, as in labels.
	Flat bool
	// Within returns the field for a name that leads into this field by dots,
	// where the parts are not members of those names. Its path keeps the case of
	// the text. It has precedence over Dotted.
	Within func(path []string) (Field, bool)
	// StringMaps are paths below a JSON field to objects whose values are all
	// strings, such as labels. Equality there is rendered so that a GIN index
	// on the object serves it.
	StringMaps [][]string

	// Equal is a condition in SQL that the field equals a text, with %s for the
	// text. It replaces the comparison with SQL where an index serves Equal
	// better. It is not used below "not".
	Equal string

	// Restrictions of a contract. Ops are the possible operators, of
	// = <> < <= > >= like ilike ~ in between is @>; nil is all. A Positive field
	// cannot stand below "not". Enum are the possible values; nil is any.
	Ops      []string
	Positive bool
	Enum     []string
}

// Schema is the fields by which a list can be searched.
type Schema struct {
	Table  string // its name may stand before a field's, as in resources.name
	Fields map[string]Field
}

// Limits bound a search. The zero value of each is its default.
type Limits struct {
	Bytes  int // of the text; default 4096
	Depth  int // of parentheses and "not"; default 32
	Terms  int // comparisons, those of one field that are joined by "or" counted once; default 100
	Values int // all values together; default 1000

	// Keyed are fields whose whole text after the first dot is one key, which may
	// have the signs / and -: labels.example.com/shard-a. It is no limit, but Parse
	// needs it, because elsewhere these signs are arithmetic.
	Keyed []string
}

func (l Limits) withDefaults() Limits {
	def := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&l.Bytes, 4096)
	def(&l.Depth, 32)
	def(&l.Terms, 100)
	def(&l.Values, 1000)
	return l
}

// Error is a mistake in a search text.
type Error struct {
	Column  int // counted in characters, from 1; 0 if it is about the whole
	Message string
}

func (e *Error) Error() string {
	if e.Column == 0 {
		return e.Message
	}
	return fmt.Sprintf("at column %d: %s", e.Column, e.Message)
}

// Query is a parsed text.
type Query struct {
	text   string
	limits Limits
	root   node // nil: the text is empty and everything matches
}

// Parse reads a text. A text that has ->> or @> anywhere is in the language
// with JSON paths, every other one is TSL. Its errors are *Error.
func Parse(text string, limits Limits) (*Query, error) {
	q := &Query{text: text, limits: limits.withDefaults()}
	switch {
	case len(text) > q.limits.Bytes:
		return nil, &Error{Message: fmt.Sprintf("the search has %d bytes, at most %d are possible", len(text),
			q.limits.Bytes)}
	case !utf8.ValidString(text):
		return nil, &Error{Message: "the search is not valid UTF-8"}
	case strings.ContainsRune(text, 0):
		return nil, q.errorf(strings.IndexByte(text, 0), "a NUL character")
	}
	p := &parser{scanner: scanner{text: text, paths: strings.Contains(text, "->>") || strings.Contains(text, "@>")},
		query: q}
	root, err := p.parse()
	if err != nil {
		return nil, err
	}
	q.root = root
	return q, nil
}

// errorf makes an error at a byte offset.
func (q *Query) errorf(pos int, format string, args ...any) *Error {
	pos = min(pos, len(q.text))
	return &Error{Column: utf8.RuneCountInString(q.text[:pos]) + 1, Message: fmt.Sprintf(format, args...)}
}

// shorten shortens a piece of the text for an error message.
func shorten(s string) string {
	if len(s) <= 40 {
		return s
	}
	return strings.ToValidUTF8(s[:40], "") + "..."
}
