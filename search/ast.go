package search

import "time"

// node is a condition of the text, before it is bound.
type node interface{ position() int } // the byte offset in the text

// logic joins conditions by and, or by or.
type logic struct {
	pos   int
	or    bool
	terms []node
}

// negation is "not" before a condition.
type negation struct {
	pos  int
	term node
}

// comparison is "a < b", and "a like 'b'".
type comparison struct {
	pos         int
	op          string // = <> < <= > >= like ilike ~ @>
	not         bool   // not like, not ilike, ~!
	left, right operand
}

// membership is "a in (b, c)".
type membership struct {
	pos  int
	not  bool
	left operand
	list []literal
}

// between is "a between b and c".
type between struct {
	pos       int
	not       bool
	left      operand
	low, high literal
}

// nullTest is "a is null", and with not "a is not null".
type nullTest struct {
	pos     int
	not     bool
	operand operand
}

func (n logic) position() int      { return n.pos }
func (n negation) position() int   { return n.pos }
func (n comparison) position() int { return n.pos }
func (n membership) position() int { return n.pos }
func (n between) position() int    { return n.pos }
func (n nullTest) position() int   { return n.pos }

// operand is a side of a comparison.
type operand interface{ position() int } // the byte offset in the text

// name names a field, or a member of a JSON field.
type name struct {
	pos   int
	parts []string // a.b.c
	path  []string // ->'a'->'b': the names of members
	text  bool     // the last step of path is ->>
}

// literal is a value in the text.
type literal struct {
	pos    int
	text   string // the value of a string; the text of other literals
	kind   literalKind
	number float64
	time   time.Time
}

type literalKind int

const (
	stringLiteral literalKind = iota
	numberLiteral
	timeLiteral
	boolLiteral // text is "true" or "false"
)

// arithmetic is "a + b".
type arithmetic struct {
	pos         int
	op          byte // + - * / %
	left, right operand
}

func (o name) position() int       { return o.pos }
func (o literal) position() int    { return o.pos }
func (o arithmetic) position() int { return o.pos }
