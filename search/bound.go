package search

// Filter is a query bound to the fields of one list. It is immutable; several goroutines may use
// it.
type Filter struct {
	root bound // nil: every row matches
}

// Empty reports whether every row matches.
func (f *Filter) Empty() bool { return f.root == nil }

// bound is a condition whose expressions have types.
type bound interface {
	// render writes the condition as SQL. Some forms that an index serves are false where SQL has
	// null, so that they are correct with a positive polarity only.
	render(r *renderer, p polarity)
	// test evaluates the condition on one row.
	test(e *evaluation) truth
}

// boundLogic joins conditions by "and", or by "or".
type boundLogic struct {
	or    bool
	terms []bound
}

// boundNot is "not" before a condition.
type boundNot struct{ term bound }

// boundCompare compares two expressions of one type.
type boundCompare struct {
	op          string // = <> < <= > >=
	left, right expr
}

// boundIn compares an expression with values of its type.
type boundIn struct {
	not      bool
	left     expr
	elemType Type
	list     []any // string, int64, float64, time.Time or bool, by elemType
}

// boundNull is "is null" and "is not null".
type boundNull struct {
	not     bool
	operand expr
}

// boundPattern is like, ilike and ~.
type boundPattern struct {
	op      string
	left    expr
	pattern string
}

// boundContains is @>: the left side contains a JSON document.
type boundContains struct {
	left  expr
	text  string // the document
	value any    // the document, decoded by decodeJSON
}

// expr is an expression with a type.
type expr interface {
	typeOf() Type
	sql(r *renderer) string
	// eval returns the value in one row: nil is null; JSON is as decodeJSON returns it.
	eval(e *evaluation) any
}

// fieldRef is a field, or a member of its JSON.
type fieldRef struct {
	pos        int
	field      string // its name in the schema
	definition Field
	path       []string // the names of the members that lead to the member; empty for the field itself
	typ        Type
}

// constant is a value from the text, with its type.
type constant struct {
	typ   Type
	value any // string, int64, float64, time.Time, bool or jsonConstant
}

// jsonConstant is the value of a constant of type JSON.
type jsonConstant struct {
	text  string
	value any // the text, decoded by decodeJSON
}

// calculation is arithmetic on float8.
type calculation struct {
	op          byte // + - * / %, or conversion
	left, right expr // right is nil for conversion
	whole       bool // both sides are whole numbers; their quotient is truncated
}

// conversion is the operator of a calculation that only converts its left side to float8.
const conversion = ' '

func (x fieldRef) typeOf() Type    { return x.typ }
func (x constant) typeOf() Type    { return x.typ }
func (x calculation) typeOf() Type { return float }
