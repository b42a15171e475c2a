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
	// ErrCost says that an evaluation was ended because it is too expensive.
	ErrCost = errors.New("operation cancelled: actual cost limit exceeded")
	// ErrAbsent says that an expression reads a member, an element or a variable that is not there.
	ErrAbsent = errors.New("it is not there")
	// ErrInterrupted says that its context ended first.
	ErrInterrupted = errors.New("operation interrupted")
)

// CompileError says what is wrong with an expression: one line for each
// problem, followed by the place.
type CompileError struct{ Issues string }

func (e *CompileError) Error() string { return e.Issues }

// Summary is the first problem without the place.
func (e *CompileError) Summary() string {
	first, _, _ := strings.Cut(e.Issues, "\n | ")
	return first
}

// Type is what an expression, a variable or an argument is.
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

// Options say what expressions may use, besides the CEL standard, optional
// types (a.?b.orValue(c)), and the extensions for strings and lists.
type Options struct {
	Variables map[string]Type
	Functions []Function
	// Cost is the limit of one evaluation; a look at a field costs one. The
	// time that cel-go takes to count grows with the square of the cost: the
	// default of 100,000 takes at most about 20 ms, Kubernetes' 1,000,000
	// would take seconds.
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
	// interruptEvery is after how many rounds of a comprehension the context
	// is asked.
	interruptEvery = 100
	// maxRange is the longest list that lists.range makes.
	maxRange = 100_000
)

// NewEnv errs when names are no identifiers or clash.
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
	for _, f := range append(guarded(), o.Functions...) {
		opts = append(opts, f.option())
		if f.macro() {
			opts = append(opts, cel.Macros(f.expansion()))
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
}

// Compile checks an expression and that its result can be of the wanted type;
// where only the values will tell, Eval does. The error is a *CompileError
// when the expression is wrong.
func (e *Env) Compile(expression string, want Type) (p *Program, err error) {
	defer recovered(&err)
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
	return &Program{text, want, prg}, nil
}

// String is the expression as it was written.
func (p *Program) String() string { return p.text }

// Result is what an evaluation gave: a JSON-like value, a time.Time or a
// time.Duration, and what it cost.
type Result struct {
	Value any
	Cost  uint64
}

// Eval evaluates over the variables. The cost is told with an error, too. It
// errs with ErrCost, with ErrInterrupted and the context's cause, or with what
// went wrong in the expression.
func (p *Program) Eval(ctx context.Context, vars map[string]any) (r Result, err error) {
	defer recovered(&err)
	if ctx.Err() != nil { // comprehensions ask now and then only
		return r, fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))
	}
	out, details, err := p.program.ContextEval(ctx, vars)
	if details != nil && details.ActualCost() != nil {
		r.Cost = *details.ActualCost()
	}
	if err != nil {
		return r, evalError(ctx, err)
	}
	if r.Value, err = native(out); err != nil {
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

// absence is an error that is ErrAbsent and keeps the words of cel-go.
type absence struct{ error }

func (absence) Is(target error) bool { return target == ErrAbsent }
func (a absence) Unwrap() error      { return a.error }

// isAbsence recognizes the errors of cel-go's attributes and optional values, which have no type of
// their own. TestAbsenceIsKnown holds the words against the version in use.
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

// recovered makes a panic an error: whatever an expression does, its user
// goes on.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("rules: internal error: %v", r)
	}
}

// references are the variables that an expression reads.
func references(e ast.Expr, bound map[string]int, found map[string]bool) {
	switch e.Kind() {
	case ast.IdentKind:
		if name := e.AsIdent(); bound[name] == 0 {
			found[name] = true
		}
	case ast.SelectKind:
		references(e.AsSelect().Operand(), bound, found)
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			references(c.Target(), bound, found)
		}
		for _, a := range c.Args() {
			references(a, bound, found)
		}
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			references(x, bound, found)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			references(x.AsMapEntry().Key(), bound, found)
			references(x.AsMapEntry().Value(), bound, found)
		}
	case ast.StructKind:
		for _, x := range e.AsStruct().Fields() {
			references(x.AsStructField().Value(), bound, found)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		references(c.IterRange(), bound, found)
		references(c.AccuInit(), bound, found)
		names := []string{c.IterVar(), c.AccuVar()}
		if c.HasIterVar2() {
			names = append(names, c.IterVar2())
		}
		for _, n := range names {
			bound[n]++
		}
		references(c.LoopCondition(), bound, found)
		references(c.LoopStep(), bound, found)
		references(c.Result(), bound, found)
		for _, n := range names {
			bound[n]--
		}
	}
}
