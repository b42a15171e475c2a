package rules

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// CompileLoose compiles an expression that was written for an evaluator without type checks. It is
// Compile, but
//
//   - undeclared names are variables of any type; it returns them, sorted. An evaluation that reads
//     one
//     without a value errs with ErrAbsent.
//   - the arms of a condition may be of different types.
//   - whole numbers and literal fractions may be mixed in arithmetic.
//
// The error is a *CompileError for a wrong expression.
func (e *Env) CompileLoose(expression string) (p *Program, undeclared []string, err error) {
	defer recovered(&err)
	parsed, issues := e.env.Parse(expression)
	if issues.Err() != nil {
		return nil, nil, &CompileError{issues.Err().Error()}
	}
	undeclared = e.undeclared(parsed.NativeRep().Expr())
	env := e.env
	if len(undeclared) > 0 {
		var opts []cel.EnvOption
		for _, name := range undeclared {
			opts = append(opts, cel.Variable(name, cel.DynType))
		}
		if env, err = e.env.Extend(opts...); err != nil {
			return nil, nil, fmt.Errorf("rules: %w", err)
		}
	}
	loosen(parsed.NativeRep(), false)
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		loosen(parsed.NativeRep(), true)
		if checked, _ = env.Check(parsed); checked == nil {
			return nil, undeclared, &CompileError{issues.Err().Error()}
		}
	}
	p, err = (&Env{env, e.cost}).program(expression, checked, Any)
	return p, undeclared, err
}

// undeclared returns the undeclared variables that an expression reads.
func (e *Env) undeclared(root ast.Expr) []string {
	found := map[string]bool{}
	references(root, map[string]int{}, found)
	ast.PostOrderVisit(root, ast.NewExprVisitor(func(x ast.Expr) {
		if x.Kind() != ast.CallKind || !x.AsCall().IsMemberFunction() || x.AsCall().Target().Kind() != ast.IdentKind {
			return
		}
		// lists.range(3) is no method of a variable.
		if space := x.AsCall().Target().AsIdent(); e.env.HasFunction(space + "." + x.AsCall().FunctionName()) {
			delete(found, space)
		}
	}))
	names := slices.Sorted(maps.Keys(found))
	return slices.DeleteFunc(names, func(name string) bool {
		if e.has(name) {
			return true
		}
		_, isType := e.env.CELTypeProvider().FindIdent(name) // type(x) == int
		return isType
	})
}

// loosen wraps the operand beside a literal fraction in double(). With forget it wraps the arms of
// conditions and the sides of comparisons in dyn(), so that their types may differ.
func loosen(tree *ast.AST, forget bool) {
	f := ast.NewExprFactory()
	next := ast.MaxID(tree)
	wrap := func(name string, x ast.Expr) ast.Expr {
		next++
		return f.NewCall(next, name, x)
	}
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		if x.Kind() != ast.CallKind {
			return
		}
		call := x.AsCall()
		args := slices.Clone(call.Args())
		switch name := call.FunctionName(); {
		case name == operators.Conditional && forget:
			args[1], args[2] = wrap("dyn", args[1]), wrap("dyn", args[2])
		case (name == operators.Add || name == operators.Subtract || name == operators.Multiply ||
			name == operators.Divide) && !forget:
			left, right := fraction(args[0]), fraction(args[1])
			switch {
			case left == right:
				return
			case left:
				args[1] = wrap("double", args[1])
			case right:
				args[0] = wrap("double", args[0])
			}
		case (name == operators.Equals || name == operators.NotEquals) && forget:
			args[0], args[1] = wrap("dyn", args[0]), wrap("dyn", args[1])
		default:
			return
		}
		x.SetKindCase(f.NewCall(x.ID(), call.FunctionName(), args...))
	}))
}

// fraction reports whether an expression is a literal double.
func fraction(x ast.Expr) bool {
	if x.Kind() != ast.LiteralKind {
		return false
	}
	_, is := x.AsLiteral().(types.Double)
	return is
}
