package rules

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// Reads are the members of a variable that expressions read. A caller that makes the variable may
// leave all other members out; the results stay the same.
type Reads struct {
	All     bool // an expression uses the variable as a whole, so that it may read any member
	members map[string]bool
}

// Members returns the Reads that have the members of these names.
func Members(names ...string) Reads {
	r := Reads{members: map[string]bool{}}
	for _, name := range names {
		r.members[name] = true
	}
	return r
}

// Member reports whether an expression may read the member.
func (r Reads) Member(name string) bool { return r.All || r.members[name] }

// Names returns the names of the members that expressions read, in order; All may be true beside them.
func (r Reads) Names() []string { return slices.Sorted(maps.Keys(r.members)) }

// Add adds the members of another expression.
func (r *Reads) Add(more Reads) {
	r.All = r.All || more.All
	if r.members == nil {
		r.members = map[string]bool{}
	}
	maps.Copy(r.members, more.members)
}

// Reads returns the members of a variable that the expression reads: a.b, a.?b, a["b"], has(a.b), and
// lookup("b") of the named functions, which get the variable as the first of Function.With and read
// no other member than the one that their first argument names.
func (p *Program) Reads(variable string, lookups ...string) Reads {
	w := readsWalk{variable: variable, found: Reads{members: map[string]bool{}}}
	for _, name := range lookups {
		w.lookups = append(w.lookups, Function{Name: name, hidden: true}.declaredName())
	}
	w.walk(p.tree)
	return w.found
}

// Uses reports whether the expression reads a variable.
func (p *Program) Uses(variable string) bool {
	found := map[string]bool{}
	collectVariables(p.tree, map[string]int{}, found)
	return found[variable]
}

type readsWalk struct {
	variable string
	lookups  []string
	found    Reads
}

// walk adds what an expression reads. A variable of a comprehension that hides the variable counts as
// the variable: too many members are found then, never too few.
func (w *readsWalk) walk(e ast.Expr) {
	switch e.Kind() {
	case ast.IdentKind:
		w.found.All = w.found.All || w.is(e)
	case ast.SelectKind:
		s := e.AsSelect()
		if w.is(s.Operand()) {
			w.found.members[s.FieldName()] = true
			return
		}
		w.walk(s.Operand())
	case ast.CallKind:
		w.walkCall(e.AsCall())
	case ast.ListKind:
		w.walkAll(e.AsList().Elements())
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			w.walk(entry.AsMapEntry().Key())
			w.walk(entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			w.walk(field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		w.walkAll([]ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	}
}

func (w *readsWalk) walkAll(all []ast.Expr) {
	for _, e := range all {
		w.walk(e)
	}
}

func (w *readsWalk) walkCall(c ast.CallExpr) {
	args := c.Args()
	member := slices.Contains([]string{operators.Index, operators.OptIndex, operators.OptSelect}, c.FunctionName()) ||
		slices.Contains(w.lookups, c.FunctionName())
	if member && !c.IsMemberFunction() && len(args) > 1 && w.is(args[0]) && args[1].Kind() == ast.LiteralKind {
		if name, ok := args[1].AsLiteral().(types.String); ok {
			w.found.members[string(name)] = true
			w.walkAll(args[2:])
			return
		}
	}
	if c.IsMemberFunction() {
		w.walk(c.Target())
	}
	w.walkAll(args)
}

// is reports whether an expression is the variable. CEL keeps the dot before a name that a variable of a
// comprehension would hide.
func (w *readsWalk) is(e ast.Expr) bool {
	return e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == w.variable
}
