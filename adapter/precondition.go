package adapter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"atoll.dev/internal/jsonvalue"
	"atoll.dev/rules"
)

// checkPreconditions is the second phase. The first unmet precondition skips the third phase.
func (x *execution) checkPreconditions(ctx context.Context) *StepError {
	for i := range x.task.preconditions {
		p := &x.task.preconditions[i]
		r := PreconditionResult{Name: p.name, Status: Success}
		why, err := x.checkPrecondition(ctx, p, &r)
		if err != nil {
			r.Status, r.Err = Failed, err
		}
		x.result.Preconditions = append(x.result.Preconditions, r)
		switch api, _ := errors.AsType[*APIError](err); {
		case err == nil && r.Matched:
		case err == nil:
			x.skip(fmt.Sprintf("precondition '%s' not met: %s", p.name, why))
			return nil
		case api != nil && api.isResourceMissing() && !x.concernsResource(api.URL): // another resource does not exist
			x.result.Preconditions[i].Status, x.result.Preconditions[i].Err = Success, nil
			x.skip("ResourceNotFound: " + api.Error())
			return nil
		default:
			return &StepError{Preconditions, p.name, "checking the precondition", err}
		}
	}
	return nil
}

// checkPrecondition evaluates a precondition. For an unmet one, why names the unmet part.
func (x *execution) checkPrecondition(
	ctx context.Context,
	p *precondition,
	r *PreconditionResult,
) (why string, err error) {
	x.log(ctx, p.log)
	seen := x.scope
	if p.call != nil {
		r.Called = true
		answer, err := x.callObject(ctx, p.call)
		if err != nil {
			return "", err
		}
		x.scope[p.name] = answer
		if len(p.captures) > 0 { // captures see the answer's members as names of their own
			seen = maps.Clone(x.scope)
			maps.Copy(seen, answer)
		}
	}
	if err := x.bindCaptures(ctx, p.captures, seen, r); err != nil {
		return "", err
	}
	if p.expr != nil {
		return x.evaluatePrecondition(ctx, p.expr, r)
	}
	var unmet []string
	for _, c := range p.conditions {
		v, err := c.field.find(x.scope)
		if err != nil && !errors.Is(err, errNotFound) {
			return "", err
		}
		met, err := applyOperator(c.operator, v, c.wanted)
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", c.field.text, c.operator, err)
		}
		if !met {
			unmet = append(unmet, strings.TrimSpace(fmt.Sprintf("%s %s %v", c.field.text, c.operator, numberOrZero(c.wanted)))+
				fmt.Sprintf(" (actual: %v)", v))
		}
	}
	r.Matched = len(unmet) == 0
	return strings.Join(unmet, "; "), nil
}

func numberOrZero(v any) any {
	if v == nil {
		return ""
	}
	return v
}

// evaluatePrecondition evaluates the expression of a precondition. One that fails is not met; the reason for
// skipping, which Health reports, has its error.
func (x *execution) evaluatePrecondition(ctx context.Context, e *expr, r *PreconditionResult) (string, error) {
	v, err := e.eval(ctx, x.scope)
	switch {
	case errors.Is(err, rules.ErrInterrupted):
		return "", err
	case err != nil:
		return "CEL error: " + err.Error(), nil
	}
	r.Matched = isTrue(v)
	return fmt.Sprintf("%s is %v", e.program, v), nil
}

// bindCaptures binds the values of captures. A field that is absent is not bound.
func (x *execution) bindCaptures(
	ctx context.Context,
	captures []capture,
	seen map[string]any,
	r *PreconditionResult,
) error {
	found := map[string]any{}
	for _, c := range captures {
		var v any
		var err error
		if c.expr != nil {
			v, err = c.expr.eval(ctx, seen)
		} else {
			v, err = c.field.find(seen)
		}
		switch {
		case err != nil && c.expr != nil:
			if v, err = substitute(c.expr, c.absent, err, func(e *expr, err error) {
				x.warn(ctx, e, err)
			}); err != nil {
				return fmt.Errorf("capture %s: %w", c.name, err)
			}
		case err != nil && !errors.Is(err, errNotFound):
			return fmt.Errorf("capture %s: %w", c.name, err)
		case (err != nil || v == nil) && c.absent.Set():
			v = c.absent.Value
		case err != nil:
			continue
		}
		found[c.name] = jsonable(v)
	}
	r.Captured = found
	maps.Copy(x.scope, found)
	return nil
}

// operators are the operators of conditions.
var operators = []string{
	"equals", "notEquals", "in", "notIn", "contains", "greaterThan", "lessThan", "greaterThanOrEqual",
	"lessThanOrEqual", "exists", "notExists",
}

// applyOperator applies an operator to a field's value (nil when it is absent) and the wanted value.
func applyOperator(operator string, v, wanted any) (bool, error) {
	switch operator {
	case "exists":
		return !isEmpty(v), nil
	case "notExists":
		return isEmpty(v), nil
	case "equals":
		return jsonvalue.Equal(v, wanted), nil
	case "notEquals":
		return !jsonvalue.Equal(v, wanted), nil
	case "in", "notIn":
		list, ok := wanted.([]any)
		if !ok {
			return false, fmt.Errorf("a list is wanted, not a %s", kindOf(wanted))
		}
		in := slices.ContainsFunc(list, func(e any) bool { return jsonvalue.Equal(v, e) })
		return in == (operator == "in"), nil
	case "contains":
		return contains(v, wanted)
	}
	a, okA := toNumber(v)
	b, okB := toNumber(wanted)
	if !okA || !okB {
		return false, fmt.Errorf("a %s and a %s cannot be compared as numbers", kindOf(v), kindOf(wanted))
	}
	switch operator {
	case "greaterThan":
		return a > b, nil
	case "lessThan":
		return a < b, nil
	case "greaterThanOrEqual":
		return a >= b, nil
	case "lessThanOrEqual":
		return a <= b, nil
	}
	return false, fmt.Errorf("%q is no operator", operator)
}

func contains(v, wanted any) (bool, error) {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return jsonvalue.Equal(e, wanted) }), nil
	case string:
		s, ok := wanted.(string)
		if !ok {
			return false, fmt.Errorf("a string does not contain a %s", kindOf(wanted))
		}
		return strings.Contains(v, s), nil
	case map[string]any:
		s, ok := wanted.(string)
		if !ok {
			return false, fmt.Errorf("a mapping has no %s as a key", kindOf(wanted))
		}
		_, has := v[s]
		return has, nil
	}
	return false, fmt.Errorf("a %s contains nothing", kindOf(v))
}
