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
//   - undeclared names are variables of any type; CompileLoose returns them, sorted. An evaluation
//     that reads such a variable without a value fails with ErrAbsent.
//   - the arms of a condition may be of different types.
//   - whole numbers and literal fractions may be mixed in arithmetic.
//
// The error is a *CompileError for a wrong expression.
func (e *Env) CompileLoose(expression string) (p *Program, undeclared []string, err error) {
	defer panicToError(&err)
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
	convertBesideFractions(parsed.NativeRep())
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		allowMixedTypes(parsed.NativeRep())
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
	collectVariables(root, map[string]int{}, found)
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
		if e.isDeclared(name) {
			return true
		}
		_, isType := e.env.CELTypeProvider().FindIdent(name) // type(x) == int
		return isType
	})
}

// rewriter replaces arguments of the calls in an expression.
type rewriter struct {
	f    ast.ExprFactory
	next int64 // the last id of a node
}

// wrap returns a call of a function of one argument.
func (r *rewriter) wrap(function string, x ast.Expr) ast.Expr {
	r.next++
	return r.f.NewCall(r.next, function, x)
}

// rewriteCalls calls f for each call in an expression, inner calls first, with a copy of the
// arguments. When f returns true, its changes of the arguments replace those of the call.
func rewriteCalls(tree *ast.AST, f func(r *rewriter, function string, args []ast.Expr) bool) {
	r := &rewriter{f: ast.NewExprFactory(), next: ast.MaxID(tree)}
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		if x.Kind() != ast.CallKind {
			return
		}
		name, args := x.AsCall().FunctionName(), slices.Clone(x.AsCall().Args())
		if f(r, name, args) {
			x.SetKindCase(r.f.NewCall(x.ID(), name, args...))
		}
	}))
}

// convertBesideFractions wraps the operand beside a literal fraction in double(), so that it may be a
// whole number.
func convertBesideFractions(tree *ast.AST) {
	rewriteCalls(tree, func(r *rewriter, function string, args []ast.Expr) bool {
		switch function {
		case operators.Add, operators.Subtract, operators.Multiply, operators.Divide:
		default:
			return false
		}
		left, right := isFraction(args[0]), isFraction(args[1])
		switch {
		case left == right:
			return false
		case left:
			args[1] = r.wrap("double", args[1])
		default:
			args[0] = r.wrap("double", args[0])
		}
		return true
	})
}

// allowMixedTypes wraps the arms of conditions and the sides of comparisons in dyn(), so that their types
// may differ.
func allowMixedTypes(tree *ast.AST) {
	rewriteCalls(tree, func(r *rewriter, function string, args []ast.Expr) bool {
		switch function {
		case operators.Conditional:
			args[1], args[2] = r.wrap("dyn", args[1]), r.wrap("dyn", args[2])
		case operators.Equals, operators.NotEquals:
			args[0], args[1] = r.wrap("dyn", args[0]), r.wrap("dyn", args[1])
		default:
			return false
		}
		return true
	})
}

// isFraction reports whether an expression is a literal double.
func isFraction(x ast.Expr) bool {
	if x.Kind() != ast.LiteralKind {
		return false
	}
	_, is := x.AsLiteral().(types.Double)
	return is
}
