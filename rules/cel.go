package rules

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
)

var (
	// ErrCost is the error of an evaluation that exceeded its cost limit.
	ErrCost = errors.New("operation cancelled: actual cost limit exceeded")
	// ErrAbsent is the error of an expression that reads a member, an element or a variable that
	// does not exist.
	ErrAbsent = errors.New("it is not there")
	// ErrInterrupted is the error of an evaluation whose context ended.
	ErrInterrupted = errors.New("operation interrupted")
)

// CompileError has the problems of an expression: a line for each problem, and after it the lines that show its place.
type CompileError struct{ Issues string }

func (e *CompileError) Error() string { return e.Issues }

// Summary returns the first problem without its place.
func (e *CompileError) Summary() string {
	first, _, _ := strings.Cut(e.Issues, "\n | ")
	return first
}

// Type is the type of an expression, a variable or an argument.
type Type int

const (
	Any Type = iota
	Bool
	Int
	Double
	String
	Timestamp // time.Time
	Duration  // time.Duration
	List      // []any
	Map       // map[string]any
)

func (t Type) cel() *cel.Type {
	return [...]*cel.Type{
		cel.DynType, cel.BoolType, cel.IntType, cel.DoubleType, cel.StringType, cel.TimestampType, cel.DurationType,
		cel.ListType(cel.DynType), cel.MapType(cel.StringType, cel.DynType),
	}[t]
}

func (t Type) String() string {
	return [...]string{"dyn", "bool", "int", "double", "string", "timestamp", "duration", "list", "map"}[t]
}

// Options has the variables and functions of expressions, besides the CEL standard, optional types
// (a.?b.orValue(c)), and the extensions for strings and lists.
type Options struct {
	Variables map[string]Type
	Functions []Function
	// Cost limits one evaluation; reading a field costs 1. cel-go's accounting takes time that
	// grows with the square of the cost: at most about 20 ms for the default of 100,000, seconds
	// for Kubernetes' 1,000,000.
	Cost uint64
}

// Env compiles expressions. It is immutable and may be shared.
type Env struct {
	env  *cel.Env
	cost uint64
}

// Limits of an expression's text and shape.
const (
	maxExpression = 64 << 10
	maxNesting    = 64
	// interruptEvery is the number of rounds of a comprehension between two checks of the context.
	interruptEvery = 100
	// maxRange is the longest list that lists.range makes.
	maxRange = 100_000
)

// NewEnv returns an environment. It returns an error when names are no identifiers or clash.
func NewEnv(o Options) (*Env, error) {
	if o.Cost == 0 {
		o.Cost = 100_000
	}
	opts := []cel.EnvOption{
		cel.OptionalTypes(), ext.Strings(), ext.Lists(ext.ListsMaxRangeSize(maxRange)),
		cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxExpression), cel.ParserRecursionLimit(maxNesting), cel.RegexProgramSizeLimit(
			1000),
	}
	for name, t := range o.Variables {
		opts = append(opts, cel.Variable(name, t.cel()))
	}
	for _, f := range append(boundedFunctions(), o.Functions...) {
		opts = append(opts, f.option())
		if f.isMacro() {
			opts = append(opts, cel.Macros(f.newMacro()))
		}
	}
	env, err := cel.NewEnv(opts...)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return &Env{env, o.Cost}, nil
}

// Program is a compiled expression. It may be evaluated by several goroutines.
type Program struct {
	text    string
	want    Type
	program cel.Program
	tree    ast.Expr
}

// Compile compiles an expression whose result can have the wanted type; where the type depends on
// values, Eval checks it. The error is a *CompileError for a wrong expression.
func (e *Env) Compile(expression string, want Type) (p *Program, err error) {
	defer panicToError(&err)
	checked, issues := e.env.Compile(expression)
	if issues.Err() != nil {
		return nil, &CompileError{issues.Err().Error()}
	}
	if out := checked.OutputType(); want != Any && !out.IsExactType(cel.DynType) && !want.cel().IsAssignableType(out) {
		return nil, &CompileError{fmt.Sprintf("expected %s result, got %s", want, out)}
	}
	return e.program(expression, checked, want)
}

func (e *Env) program(text string, checked *cel.Ast, want Type) (*Program, error) {
	prg, err := e.env.Program(checked, cel.CostLimit(e.cost), cel.CostTracking(estimator{}),
		cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		return nil, fmt.Errorf("rules: planning %q: %w", text, err)
	}
	return &Program{text, want, prg, checked.NativeRep().Expr()}, nil
}

// String returns the source text.
func (p *Program) String() string { return p.text }

// Result is the outcome of an evaluation: a JSON-like value, a time.Time or a time.Duration, and
// the cost.
type Result struct {
	Value any
	Cost  uint64
}

// Eval evaluates the expression over variables. The error is ErrCost, ErrInterrupted with the
// context's cause, ErrAbsent, or another failure of the expression. The result has the cost also
// with an error.
func (p *Program) Eval(ctx context.Context, vars map[string]any) (r Result, err error) {
	defer panicToError(&err)
	if ctx.Err() != nil { // comprehensions check the context only every interruptEvery rounds
		return r, fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
	}
	out, details, err := p.program.ContextEval(ctx, vars)
	if details != nil && details.ActualCost() != nil {
		r.Cost = *details.ActualCost()
	}
	if err != nil {
		return r, evalError(ctx, err)
	}
	if r.Value, err = toJSONValue(out); err != nil {
		return r, err
	}
	if !p.want.holds(r.Value) {
		return r, fmt.Errorf("expected %s result, got %T", p.want, r.Value)
	}
	return r, nil
}

func evalError(ctx context.Context, err error) error {
	var cancelled interpreter.EvalCancelledError
	switch {
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return ErrCost
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
	case isAbsence(err):
		return absence{err}
	}
	return err
}

// absence is ErrAbsent with the text of an error of cel-go.
type absence struct{ error }

func (absence) Is(target error) bool { return target == ErrAbsent }
func (a absence) Unwrap() error      { return a.error }

// isAbsence recognizes the errors of cel-go's attributes and optional values, which have no type of
// their own. TestIsAbsenceRecognizesErrorsOfCEL holds the words against the version in use.
func isAbsence(err error) bool {
	text := err.Error()
	for _, words := range []string{
		"no such key: ", "no such attribute(s): ", "index out of bounds: ", "optional.none() dereference",
	} {
		if strings.HasPrefix(text, words) {
			return true
		}
	}
	return false
}

// panicToError turns a panic of cel-go into an error.
func panicToError(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("rules: internal error: %v", r)
	}
}

// collectVariables adds to found the variables that an expression reads.
func collectVariables(e ast.Expr, bound map[string]int, found map[string]bool) {
	switch e.Kind() {
	case ast.IdentKind:
		// A leading dot names the variable of the environment, also where a comprehension has a variable of that name.
		if name, global := strings.CutPrefix(e.AsIdent(), "."); global || bound[name] == 0 {
			found[name] = true
		}
	case ast.SelectKind:
		collectVariables(e.AsSelect().Operand(), bound, found)
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			collectVariables(c.Target(), bound, found)
		}
		for _, a := range c.Args() {
			collectVariables(a, bound, found)
		}
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			collectVariables(x, bound, found)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			collectVariables(x.AsMapEntry().Key(), bound, found)
			collectVariables(x.AsMapEntry().Value(), bound, found)
		}
	case ast.StructKind:
		for _, x := range e.AsStruct().Fields() {
			collectVariables(x.AsStructField().Value(), bound, found)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		collectVariables(c.IterRange(), bound, found)
		collectVariables(c.AccuInit(), bound, found)
		names := []string{c.IterVar(), c.AccuVar()}
		if c.HasIterVar2() {
			names = append(names, c.IterVar2())
		}
		for _, n := range names {
			bound[n]++
		}
		collectVariables(c.LoopCondition(), bound, found)
		collectVariables(c.LoopStep(), bound, found)
		collectVariables(c.Result(), bound, found)
		for _, n := range names {
			bound[n]--
		}
	}
}
