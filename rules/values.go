package rules

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// Function is a function of expressions. It must be pure. Its arguments and results are values as
// Eval returns them.
type Function struct {
	Name   string
	Params []Type
	Result Type
	// Method makes it a method of its first parameter: a.name(b).
	Method bool
	// With names variables whose values Do gets before the arguments, so that a function may depend
	// on the evaluation's variables. Not for methods.
	With []string
	Do   func(args []any) (any, error)

	// hidden functions are called through a macro of the name.
	hidden bool
}

func (f Function) isMacro() bool { return len(f.With) > 0 || f.hidden }

// declaredName returns the name of the declared function; that of a macro cannot be written in
// expressions.
func (f Function) declaredName() string {
	if f.isMacro() {
		return "@" + f.Name
	}
	return f.Name
}

const overloadPrefix = "rules_"

func (f Function) option() cel.EnvOption {
	params := make([]*cel.Type, 0, len(f.With)+len(f.Params))
	id := overloadPrefix + f.Name
	for range f.With {
		params = append(params, cel.DynType)
	}
	for _, p := range f.Params {
		params = append(params, p.cel())
		id += "_" + p.String()
	}
	binding := cel.FunctionBinding(func(args ...ref.Val) ref.Val {
		in := make([]any, len(args))
		for i, a := range args {
			v, err := toJSONValue(a)
			if err != nil {
				return types.WrapErr(err)
			}
			in[i] = v
		}
		out, err := f.Do(in)
		if err != nil {
			return types.WrapErr(err)
		}
		return types.DefaultTypeAdapter.NativeToValue(out)
	})
	if f.Method && !f.hidden {
		return cel.Function(f.declaredName(), cel.MemberOverload(id, params, f.Result.cel(), binding))
	}
	return cel.Function(f.declaredName(), cel.Overload(id, params, f.Result.cel(), binding))
}

// newMacro returns the macro that adds the variables of With to a call.
func (f Function) newMacro() cel.Macro {
	expand := func(m cel.MacroExprFactory, target ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		var all []ast.Expr
		for _, name := range f.With {
			all = append(all, m.NewIdent(name))
		}
		if f.Method {
			all = append(all, target)
		}
		return m.NewCall(f.declaredName(), append(all, args...)...), nil
	}
	if f.Method {
		return cel.ReceiverMacro(f.Name, len(f.Params)-1, expand)
	}
	return cel.GlobalMacro(f.Name, len(f.Params), expand)
}

// maxString is the longest result of replace and join, in bytes. The extension's own functions
// count their cost after the fact, so two calls could exhaust the memory.
const maxString = 1 << 20

var errTooLong = fmt.Errorf("%w: a string of more than %d bytes", ErrCost, maxString)

// boundedFunctions returns replace and join with a bound on their results. They replace those of cel-go's extensions.
func boundedFunctions() []Function {
	replace := func(args []any) (any, error) {
		s, old, with, n := args[0].(string), args[1].(string), args[2].(string), -1
		if len(args) > 3 {
			n = int(args[3].(int64))
		}
		if count := strings.Count(s, old); count > 0 && n != 0 {
			if n > 0 {
				count = min(count, n)
			}
			if grown := len(with) - len(old); grown > 0 && count > (maxString-len(s))/grown {
				return nil, errTooLong
			}
		}
		return strings.Replace(s, old, with, n), nil
	}
	join := func(args []any) (any, error) {
		list, sep := args[0].([]any), ""
		if len(args) > 1 {
			sep = args[1].(string)
		}
		var parts []string
		size := 0
		for _, x := range list {
			s, ok := x.(string)
			if !ok {
				return nil, errors.New("join: the list has elements that are no strings")
			}
			if size += len(s) + len(sep); size > maxString {
				return nil, errTooLong
			}
			parts = append(parts, s)
		}
		return strings.Join(parts, sep), nil
	}
	return []Function{
		{Name: "replace", Params: []Type{String, String, String}, Result: String, Method: true, hidden: true,
			Do: replace},
		{Name: "replace", Params: []Type{String, String, String, Int}, Result: String, Method: true, hidden: true,
			Do: replace},
		{Name: "join", Params: []Type{List}, Result: String, Method: true, hidden: true, Do: join},
		{Name: "join", Params: []Type{List, String}, Result: String, Method: true, hidden: true, Do: join},
	}
}

// estimator computes the cost of our functions from the sizes of arguments and result.
type estimator struct{}

func (estimator) CallCost(_, overload string, args []ref.Val, result ref.Val) *uint64 {
	if !strings.HasPrefix(overload, overloadPrefix) {
		return nil
	}
	cost := uint64(1)
	for _, v := range append(args, result) {
		if s, ok := v.(traits.Sizer); ok {
			cost += uint64(s.Size().(types.Int))/10 + 1
		}
	}
	return &cost
}

// maxResultValues is the largest number of values in a result.
const maxResultValues = 100_000

// toJSONValue converts a CEL value to a JSON-like one. A value that came in as a variable is not copied.
func toJSONValue(v ref.Val) (any, error) {
	left := maxResultValues
	return toJSONValueWithin(v, &left)
}

func toJSONValueWithin(v ref.Val, left *int) (any, error) {
	if *left--; *left < 0 {
		return nil, fmt.Errorf("%w: a result of more than %d values", ErrCost, maxResultValues)
	}
	switch v := v.(type) {
	case nil, types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		return int64(v), nil
	case types.Double:
		return float64(v), nil
	case types.String:
		return string(v), nil
	case types.Bytes:
		return []byte(v), nil
	case types.Timestamp:
		return v.Time, nil
	case types.Duration:
		return v.Duration, nil
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return toJSONValueWithin(v.GetValue(), left)
	case *types.Err:
		return nil, v
	}
	switch held := v.Value().(type) {
	case map[string]any, []any:
		return held, nil
	}
	switch v := v.(type) {
	case traits.Lister:
		list := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			x, err := toJSONValueWithin(it.Next(), left)
			if err != nil {
				return nil, err
			}
			list = append(list, x)
		}
		return list, nil
	case traits.Mapper:
		m := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			key, ok := k.(types.String)
			if !ok {
				return nil, fmt.Errorf("a map in a result has the key %v, which is no string", k.Value())
			}
			x, err := toJSONValueWithin(v.Get(k), left)
			if err != nil {
				return nil, err
			}
			m[string(key)] = x
		}
		return m, nil
	}
	return nil, fmt.Errorf("a result is of the type %s, which has no JSON", v.Type().TypeName())
}

// holds reports whether a value has the type.
func (t Type) holds(v any) bool {
	ok := true
	switch t {
	case Bool:
		_, ok = v.(bool)
	case Int:
		_, ok = v.(int64)
	case Double:
		_, ok = v.(float64)
	case String:
		_, ok = v.(string)
	case Timestamp:
		_, ok = v.(time.Time)
	case Duration:
		_, ok = v.(time.Duration)
	case List:
		_, ok = v.([]any)
	case Map:
		_, ok = v.(map[string]any)
	}
	return ok
}
