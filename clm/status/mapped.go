package status

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"atoll.dev/rules"
)

// Rule makes a condition of a resource from its adapters' reports. Each field but Type is
// a CEL expression over statuses, a list of {adapter, observed_generation, conditions,
// data} sorted by adapter, and resource, in its wire form; secret members of both are
// masked. The condition exists only if When is true. Status may be a text or a bool.
type Rule struct {
	Type                          string
	When, Status, Reason, Message string
}

// Mapper holds compiled rules. It may be used by several goroutines.
type Mapper struct{ rules []compiled }

type compiled struct {
	kind                          string
	when, status, reason, message *rules.Program
}

// Bounds of a mapped condition.
const (
	maxType    = 100
	maxReason  = 256
	maxMessage = 2048
	mapCost    = 10_000
)

// NewMapper compiles rules. It returns an error if an expression is wrong, if two rules
// have one type, or if a type is reserved for the conditions of Aggregate.
func NewMapper(all []Rule) (*Mapper, error) {
	env, err := rules.NewEnv(rules.Options{
		Variables: map[string]rules.Type{"statuses": rules.List, "resource": rules.Map},
		Functions: []rules.Function{
			{Name: "toJson", Params: []rules.Type{rules.Any}, Result: rules.String, Do: toJSON},
			{Name: "dig", Params: []rules.Type{rules.Any, rules.String}, Result: rules.Any, Do: dig},
		},
		Cost: mapCost,
	})
	if err != nil {
		return nil, err
	}
	m := &Mapper{}
	seen := map[string]bool{}
	for _, r := range all {
		switch {
		case r.Type == "" || len(r.Type) > maxType:
			return nil, fmt.Errorf("condition %q: a type has 1 to %d characters", r.Type, maxType)
		case r.Type == Reconciled, r.Type == LastKnownReconciled, strings.HasSuffix(r.Type, "Successful"):
			return nil, fmt.Errorf("condition %s: the type is the resource's own; take another", r.Type)
		case seen[r.Type]:
			return nil, fmt.Errorf("condition %s is there twice", r.Type)
		}
		seen[r.Type] = true
		c := compiled{kind: r.Type}
		for _, e := range []struct {
			name, text, absent string
			want               rules.Type
			into               **rules.Program
		}{
			{"when", r.When, "true", rules.Bool, &c.when}, {"output.status", r.Status, "", rules.String, &c.status},
			{"output.reason", r.Reason, `""`, rules.Any, &c.reason}, {"output.message", r.Message, `""`, rules.Any,
				&c.message},
		} {
			if e.text == "" {
				e.text = e.absent
			}
			*e.into, err = env.Compile(e.text, e.want)
			if err != nil && e.into == &c.status {
				*e.into, err = env.Compile(e.text, rules.Bool)
			}
			if err != nil {
				return nil, fmt.Errorf("condition %s: %s: %w", r.Type, e.name, err)
			}
		}
		m.rules = append(m.rules, c)
	}
	slices.SortFunc(m.rules, func(a, b compiled) int { return strings.Compare(a.kind, b.kind) })
	return m, nil
}

// OnFailure is the reaction of Map to an expression that fails.
type OnFailure int

// The values of OnFailure. A report with which an expression fails is refused. A change of the spec must not fail
// because of earlier reports, so the condition keeps its previous value then.
const (
	ReturnError OnFailure = iota
	KeepPrevious
)

// Empty reports whether the mapper has no rules.
func (m *Mapper) Empty() bool { return m == nil || len(m.rules) == 0 }

// Map computes the mapped conditions of a resource, sorted by type; document is the wire
// form of the resource. Reports with an Unknown condition are hidden from the rules. A
// condition whose reason is too long is omitted. An expression fails if its evaluation fails,
// or if a status is neither True nor False; onFailure decides what Map does then.
func (m *Mapper) Map(ctx context.Context, r Resource, document map[string]any, reports []Report, previous []Condition,
	onFailure OnFailure) ([]Condition, error) {
	if m.Empty() {
		return nil, nil
	}
	a := aggregation{Resource: r, previous: previous}
	statuses := []any{}
	latest := r.UpdatedAt
	for _, report := range sorted(reports) {
		if slices.ContainsFunc(report.Conditions, func(c Reported) bool { return c.Status == Unknown }) {
			continue
		}
		if report.ObservedAt.After(latest) {
			latest = report.ObservedAt
		}
		statuses = append(statuses, visible(report))
	}
	vars := map[string]any{"statuses": statuses, "resource": masked(document)}
	var conditions []Condition
	for _, rule := range m.rules {
		c, ok, err := rule.eval(ctx, vars)
		if before := a.before(rule.kind); err != nil && onFailure == KeepPrevious {
			if before != nil {
				conditions = append(conditions, *before)
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("condition %s: %w", rule.kind, err)
		}
		if !ok {
			continue
		}
		c.ObservedGeneration, c.LastUpdatedTime = r.Generation, latest
		a.setTimes(&c, a.before(rule.kind))
		conditions = append(conditions, c)
	}
	return conditions, nil
}

// eval evaluates one rule; ok is false if the resource has no such condition.
func (r compiled) eval(ctx context.Context, vars map[string]any) (c Condition, ok bool, err error) {
	when, err := r.when.Eval(ctx, vars)
	if err != nil || when.Value != true {
		return c, false, err
	}
	texts := make([]string, 3)
	for i, p := range []*rules.Program{r.status, r.reason, r.message} {
		out, err := p.Eval(ctx, vars)
		if err != nil {
			return c, false, err
		}
		texts[i] = textOf(out.Value)
	}
	c = Condition{Type: r.kind, Reason: Given(texts[1])}
	switch {
	case strings.EqualFold(texts[0], string(True)):
		c.Status = True
	case strings.EqualFold(texts[0], string(False)):
		c.Status = False
	default:
		return c, false, fmt.Errorf("output.status is neither True nor False")
	}
	message := texts[2]
	if len(message) > maxMessage {
		n := maxMessage
		for !utf8.RuneStart(message[n]) {
			n--
		}
		message = message[:n]
	}
	c.Message = Given(message)
	return c, len(texts[1]) <= maxReason, nil
}

// textOf returns a value as a condition shows it.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		if v {
			return string(True)
		}
		return string(False)
	}
	return fmt.Sprint(v)
}

// sorted returns reports in the order of their adapters' names.
func sorted(reports []Report) []Report {
	return slices.SortedFunc(slices.Values(reports), func(a, b Report) int {
		return cmp.Compare(a.Adapter, b.Adapter)
	})
}

// visible returns a report as rules see it, with masked data.
func visible(r Report) map[string]any {
	conditions := make([]any, len(r.Conditions))
	for i, c := range r.Conditions {
		conditions[i] = map[string]any{
			"type": c.Type, "status": string(c.Status), "reason": c.Reason.String(), "message": c.Message.String(),
			"last_transition_time": c.LastTransitionTime.Format(timeForm),
		}
	}
	var data any = map[string]any{}
	if len(r.Data) > 0 {
		if err := json.Unmarshal(r.Data, &data); err != nil || data == nil {
			data = map[string]any{}
		}
		data = masked(data)
	}
	return map[string]any{"adapter": string(r.Adapter), "observed_generation": int64(r.Generation),
		"conditions": conditions, "data": data}
}

const timeForm = "2006-01-02T15:04:05.999999Z07:00"

// secret lists the members whose values no condition may show (I11).
var secret = []string{"password", "secret", "token", "api_key", "access_token", "refresh_token", "client_secret"}

// Redacted stands for the value of a secret member.
const Redacted = "***REDACTED***"

// masked replaces the values of secret members in v, at any depth, and returns v.
func masked(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range maps.Keys(v) {
			if slices.Contains(secret, strings.ToLower(key)) {
				v[key] = Redacted
			} else {
				v[key] = masked(v[key])
			}
		}
	case []any:
		for i := range v {
			v[i] = masked(v[i])
		}
	}
	return v
}

func toJSON(args []any) (any, error) {
	text, err := json.Marshal(args[0])
	return string(text), err
}

// dig returns the value at a dotted path of members and indices; null if there is none.
func dig(args []any) (any, error) {
	v := args[0]
	for name := range strings.SplitSeq(args[1].(string), ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(at) {
				return nil, nil
			}
			v = at[i]
		default:
			return nil, nil
		}
	}
	return v, nil
}
