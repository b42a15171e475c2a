package search

import "time"

// node is a condition of the text, before it is bound.
type node interface{ at() int }

// logic joins conditions by and, or by or.
type logic struct {
	pos   int
	or    bool
	terms []node
}

// negation is "not" before a condition.
type negation struct {
	pos int
	of  node
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
	of   operand
	list []literal
}

// span is "a between b and c".
type span struct {
	pos       int
	not       bool
	of        operand
	low, high literal
}

// nullness is "a is null".
type nullness struct {
	pos int
	not bool
	of  operand
}

func (n logic) at() int      { return n.pos }
func (n negation) at() int   { return n.pos }
func (n comparison) at() int { return n.pos }
func (n membership) at() int { return n.pos }
func (n span) at() int       { return n.pos }
func (n nullness) at() int   { return n.pos }

// operand is a side of a comparison.
type operand interface{ at() int }

// name is a field, with the way into its JSON if it has one.
type name struct {
	pos   int
	parts []string // a.b.c
	path  []string // ->'a'->'b'
	text  bool     // the last step of path is ->>
}

// literal is a value.
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

func (o name) at() int       { return o.pos }
func (o literal) at() int    { return o.pos }
func (o arithmetic) at() int { return o.pos }
