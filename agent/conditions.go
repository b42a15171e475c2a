package agent

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/rules"
)

// conditionRule is one of a manifest's condition rules, compiled. A
// WellKnownConditions rule has one for each kind that has one.
type conditionRule struct {
	condition string
	invalid   string // the reason for which the rule cannot be evaluated; "": it can
	byKind    map[schema.GroupVersionKind]*compiledCondition
	all       *compiledCondition // of a CEL rule
}

type compiledCondition struct {
	expressions []*rules.Program // all must be true
	err         error            // of the first that does not compile; those before it are evaluated
	message     string
	messageExpr *rules.Program
	messageErr  *rules.CompileError
}

// ruleCondition is the result of a condition rule.
type ruleCondition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// conditionEnv compiles condition rules. Their expressions may use the CEL of Open
// Cluster Management's agent: the standard, optional types, strings, lists, regular
// expressions and hasConditions. Quantities, URLs, IP addresses, formats and semantic
// versions are not supported.
type conditionEnv struct {
	rule, message *rules.Env
}

// conditionBudget bounds the CEL cost of all rules of one manifest together.
const conditionBudget = 500_000

func newConditionEnv() *conditionEnv {
	mk := func(vars map[string]rules.Type) *rules.Env {
		env, err := rules.NewEnv(rules.Options{Variables: vars, Functions: conditionFunctions()})
		if err != nil {
			panic(err) // constants
		}
		return env
	}
	return &conditionEnv{
		rule:    mk(map[string]rules.Type{"object": rules.Any}),
		message: mk(map[string]rules.Type{"object": rules.Any, "result": rules.Bool}),
	}
}

func conditionFunctions() []rules.Function {
	hasConditions := func(args []any) (any, error) {
		status, _ := args[0].(map[string]any)
		list, _ := status["conditions"].([]any)
		return len(list) > 0, nil
	}
	// Kubernetes' find and findAll.
	find := func(args []any) (any, error) {
		re, err := regexp.Compile(args[1].(string))
		if err != nil {
			return nil, err
		}
		return re.FindString(args[0].(string)), nil
	}
	findAll := func(args []any) (any, error) {
		re, err := regexp.Compile(args[1].(string))
		if err != nil {
			return nil, err
		}
		n := -1
		if len(args) > 2 {
			n = int(args[2].(int64))
		}
		list := []any{}
		for _, s := range re.FindAllString(args[0].(string), n) {
			list = append(list, s)
		}
		return list, nil
	}
	return []rules.Function{
		{Name: "hasConditions", Params: []rules.Type{rules.Any}, Result: rules.Bool, Do: hasConditions},
		{Name: "find", Params: []rules.Type{rules.String, rules.String}, Result: rules.String, Method: true, Do: find},
		{Name: "findAll", Params: []rules.Type{rules.String, rules.String}, Result: rules.List, Method: true,
			Do: findAll},
		{Name: "findAll", Params: []rules.Type{rules.String, rules.String, rules.Int}, Result: rules.List, Method: true,
			Do: findAll},
	}
}

func (e *conditionEnv) compile(rule workv1.ConditionRule) conditionRule {
	c := conditionRule{condition: rule.Condition}
	switch rule.Type {
	case workv1.CelConditionExpressionsType:
		c.all = e.compileCEL(rule)
	case workv1.WellKnownConditionsType:
		c.byKind = map[schema.GroupVersionKind]*compiledCondition{}
		for gvk, conditions := range wellKnownConditions() {
			known, ok := conditions[rule.Condition]
			if !ok {
				continue
			}
			if rule.Message != "" {
				known.Message = rule.Message
			}
			if rule.MessageExpression != "" {
				known.MessageExpression = rule.MessageExpression
			}
			c.byKind[gvk] = e.compileCEL(known)
		}
	default:
		c.invalid = fmt.Sprintf("unrecognized condition rule type %s", rule.Type)
	}
	return c
}

func (e *conditionEnv) compileCEL(rule workv1.ConditionRule) *compiledCondition {
	c := &compiledCondition{message: rule.Message}
	for _, expression := range rule.CelExpressions {
		p, err := e.rule.Compile(expression, rules.Bool)
		if err != nil {
			c.err = err
			break
		}
		c.expressions = append(c.expressions, p)
	}
	if rule.MessageExpression != "" {
		var err error
		if c.messageExpr, err = e.message.Compile(rule.MessageExpression, rules.String); err != nil {
			if !errors.As(err, &c.messageErr) {
				c.messageErr = &rules.CompileError{Issues: err.Error()}
			}
		}
	}
	return c
}

// evaluate evaluates the rules on an object. It never fails: the condition of a rule that
// cannot be evaluated carries the error.
func evaluate(list []conditionRule, gvk schema.GroupVersionKind, object map[string]any) []ruleCondition {
	var found []ruleCondition
	ctx := context.Background() // cost bounds the time
	budget := uint64(conditionBudget)
	for i := range list {
		r := &list[i]
		compiled := r.all
		if compiled == nil && r.invalid == "" {
			if compiled = r.byKind[gvk]; compiled == nil {
				continue // there is no rule for this condition of the kind
			}
		}
		rc := ruleCondition{Type: r.condition, Status: metav1.ConditionUnknown, Reason: workv1.ConditionRuleInvalid,
			Message: r.invalid}
		if r.invalid == "" {
			rc.Status, rc.Reason, rc.Message = compiled.evaluate(ctx, r.condition, object, &budget)
		}
		found = append(found, rc)
	}
	return found
}

var errBudget = errors.New("CEL evaluation budget exceeded")

// evaluateWithin evaluates a program and subtracts its cost from the budget.
func evaluateWithin(ctx context.Context, p *rules.Program, vars map[string]any, budget *uint64) (any, error) {
	if *budget == 0 {
		return nil, errBudget
	}
	r, err := p.Eval(ctx, vars)
	*budget -= min(r.Cost, *budget)
	return r.Value, err
}

func (c *compiledCondition) evaluate(ctx context.Context, condition string, object map[string]any, budget *uint64) (
	metav1.ConditionStatus, string, string) {
	status := metav1.ConditionTrue
	for _, p := range c.expressions {
		v, err := evaluateWithin(ctx, p, map[string]any{"object": object}, budget)
		switch {
		case errors.Is(err, rules.ErrInterrupted):
			return metav1.ConditionUnknown, workv1.ConditionRuleInternalError, err.Error()
		case err != nil:
			return metav1.ConditionFalse, workv1.ConditionRuleExpressionError, err.Error()
		}
		if v == false {
			status = metav1.ConditionFalse
			break
		}
	}
	if status == metav1.ConditionTrue && c.err != nil {
		var wrong *rules.CompileError
		if errors.As(c.err, &wrong) {
			return metav1.ConditionFalse, workv1.ConditionRuleExpressionError, c.err.Error()
		}
		return metav1.ConditionUnknown, workv1.ConditionRuleInternalError, c.err.Error()
	}
	return status, workv1.ConditionRuleEvaluated, c.messageFor(ctx, condition, status, object,
		budget)
}

// maxMessage is the longest message of a condition that Kubernetes accepts.
const maxMessage = 32768

// messageFor returns the message of a condition whose rules gave status.
func (c *compiledCondition) messageFor(ctx context.Context, condition string, status metav1.ConditionStatus,
	object map[string]any, budget *uint64) string {
	result := status == metav1.ConditionTrue
	switch {
	case c.messageErr != nil:
		return c.messageErr.Summary()
	case c.messageExpr != nil:
		v, err := evaluateWithin(ctx, c.messageExpr, map[string]any{"object": object, "result": result}, budget)
		if err != nil {
			return err.Error()
		}
		if s, _ := v.(string); s != "" {
			return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
		}
	}
	switch {
	case c.message != "":
		return c.message
	case result:
		return "Manifest is " + condition
	}
	return "Manifest is not " + condition
}

// rulePrefix is the prefix of the reason of every condition that a rule made.
const rulePrefix = "ConditionRule"

func madeByRule(c metav1.Condition) bool { return strings.HasPrefix(c.Reason, rulePrefix) }

// pruneRuleConditions drops the rules' conditions of older generations: rules change only
// with the generation, so their rules may not exist any more.
func pruneRuleConditions(conditions []metav1.Condition, generation int64) []metav1.Condition {
	return slices.DeleteFunc(conditions, func(c metav1.Condition) bool {
		return madeByRule(c) && c.ObservedGeneration != generation
	})
}

// isComplete reports whether rules found the manifest's object complete, or all objects
// of an applied work. The agent never writes a complete object again, also not after its
// deletion, unless a new spec has no such rules.
func (c *core) isComplete(w *workState, m *manifestState) bool {
	if w.status == nil {
		return false
	}
	if m.rules != nil && m.rules.completes {
		mc := previousCondition(w.status.Status, m.meta)
		if mc != nil && meta.IsStatusConditionTrue(mc.Conditions, workv1.ManifestComplete) {
			return true
		}
	}
	conditions := w.status.Status.Conditions
	return meta.IsStatusConditionTrue(conditions, workv1.WorkComplete) && meta.IsStatusConditionTrue(conditions,
		workv1.WorkApplied) &&
		slices.ContainsFunc(w.manifests, func(m *manifestState) bool { return m.rules != nil && m.rules.completes })
}

// aggregateRuleConditions returns the work's conditions, which summarize the rules'
// conditions of its manifests by type, in the order of the types.
func aggregateRuleConditions(manifests []workv1.ManifestCondition, generation int64) []metav1.Condition {
	type tally struct {
		yes, no, unknown int
		message          string
	}
	tallies := map[string]*tally{}
	var kinds []string
	for _, m := range manifests {
		for _, c := range m.Conditions {
			if !madeByRule(c) {
				continue
			}
			t := tallies[c.Type]
			if t == nil {
				t = &tally{}
				tallies[c.Type] = t
				kinds = append(kinds, c.Type)
			}
			switch c.Status {
			case metav1.ConditionTrue:
				t.yes++
			case metav1.ConditionFalse:
				t.no++
			default:
				t.unknown++
			}
			if c.Message != "" {
				t.message = c.Message
			}
		}
	}
	slices.Sort(kinds)
	var sums []metav1.Condition
	for _, kind := range kinds {
		t := tallies[kind]
		sum := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "ConditionRulesAggregated",
			ObservedGeneration: generation, Message: t.message}
		switch {
		case kind == workv1.WorkProgressing && t.yes > 0: // one progressing manifest is enough
		case kind != workv1.WorkProgressing && t.no > 0, kind == workv1.WorkProgressing && t.unknown == 0:
			sum.Status = metav1.ConditionFalse
		case t.unknown > 0:
			sum.Status = metav1.ConditionUnknown
		}
		if n := t.yes + t.no + t.unknown; n != 1 || sum.Message == "" {
			sum.Message = fmt.Sprintf("Aggregated from %d manifest conditions", n)
		}
		sums = append(sums, sum)
	}
	return sums
}
