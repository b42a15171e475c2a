package search

// Filter is a query bound to the fields of one list. It is immutable.
type Filter struct {
	root bound // nil: everything matches
}

// bound is a condition whose types are known.
type bound interface {
	render(r *renderer, negated bool)
	eval(e *evaluation) truth
}

type boundLogic struct {
	or    bool
	terms []bound
}

type boundNot struct{ of bound }

// boundCompare compares two expressions of one type.
type boundCompare struct {
	op          string // = <> < <= > >=
	left, right expr
}

// boundIn compares an expression with values of its type.
type boundIn struct {
	not  bool
	of   expr
	kind Type
	list []any
}

type boundNull struct {
	not bool
	of  expr
}

// boundPattern is like, ilike and ~.
type boundPattern struct {
	op      string
	of      expr
	pattern string
}

// boundContains is @>.
type boundContains struct {
	of  expr
	doc string
	val any
}

// expr is an expression with a type.
type expr interface {
	kind() Type
	sql(r *renderer) string
	value(e *evaluation) any // nil is null
}

// ref is a field, or something within its JSON.
type ref struct {
	pos   int
	field string
	def   Field
	path  []string
	as    Type
}

// constant is a value in the text, with its type.
type constant struct {
	as Type
	v  any // string, int64, float64, time.Time, bool
}

// calc is arithmetic on float8. If whole, both sides are whole numbers, and so
// is a quotient.
type calc struct {
	op          byte
	left, right expr
	whole       bool
}

func (x ref) kind() Type      { return x.as }
func (x constant) kind() Type { return x.as }
func (x calc) kind() Type     { return float }
