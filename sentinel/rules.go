package sentinel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/rules"
)

// Rules are a configuration's expressions, compiled once. Several goroutines may
// use them. Expressions have
//
//   - resource: the wire form, deleted_time included
//   - now: a timestamp
//   - condition(type): a condition of the resource; of one that it does not have
//     the status and the times are "", the observed_generation 0
//
// as HyperFleet's, and what HyperFleet's cannot know:
//
//   - event: the last event of the resource that the broker took; its generation
//     (0: none), its time (a timestamp, of year 1 if not known), and attempts, how
//     many were sent since there was progress
//   - last_activity: a timestamp, the later one of the last report and the last
//     event; the resource's last change if there was neither
//
// The expressions of message_data have resource, and reason, a text.
type Rules struct {
	params   *rules.Params
	result   *rules.Program
	data     []field // nil: the default
	selector []Label
	timed    bool         // they look at the clock
	distance atomic.Int64 // from the last activity to when the result became true, as last found
}

// Reasons for and against events, as metrics and message_data name them.
const (
	reasonMatched = "message decision matched"
	reasonFalse   = "message decision result is false"
	reasonError   = "message decision failed"
	reasonAsked   = "reconciliation was asked for"
)

// field is one member of message_data: an expression, a literal or members.
type field struct {
	name     string // as JSON
	program  *rules.Program
	literal  json.RawMessage
	children []field
}

// Compile compiles the configuration's expressions. Errors name the parameter,
// or the line of message_data.
func (c *Config) Compile() (*Rules, error) {
	env, err := rules.NewEnv(rules.Options{
		Variables: map[string]rules.Type{
			"resource": rules.Any, "now": rules.Timestamp, "conditions": rules.Any, "event": rules.Any,
			"last_activity": rules.Timestamp,
		},
		Functions: []rules.Function{{Name: "condition", Params: []rules.Type{rules.String}, Result: rules.Any,
			With: []string{"conditions"}, Do: condition}},
	})
	if err != nil {
		return nil, err
	}
	r := &Rules{selector: c.ResourceSelector}
	defs := make([]rules.Definition, len(c.MessageDecision.Params))
	text := c.MessageDecision.Result
	for i, p := range c.MessageDecision.Params {
		defs[i] = rules.Definition{Name: p.Name, Expression: p.Expr}
		text += "\n" + p.Expr
	}
	if r.params, err = env.Params(defs); err != nil {
		return nil, fmt.Errorf("message_decision.params: %w", err)
	}
	if r.result, err = r.params.Env().Compile(c.MessageDecision.Result, rules.Bool); err != nil {
		return nil, fmt.Errorf("message_decision.result: %w", err)
	}
	r.timed = strings.Contains(text, "now")
	if c.MessageData.Kind == 0 {
		return r, nil
	}
	env, err = rules.NewEnv(rules.Options{Variables: map[string]rules.Type{"resource": rules.Any,
		"reason": rules.String}})
	if err != nil {
		return nil, err
	}
	if r.data, err = fields(env, &c.MessageData); err != nil {
		return nil, fmt.Errorf("message_data: %w", err)
	}
	return r, nil
}

func condition(args []any) (any, error) {
	if all, ok := args[0].(map[string]any); ok {
		if c, ok := all[args[1].(string)]; ok {
			return c, nil
		}
	}
	return map[string]any{"type": args[1], "status": "", "reason": "", "message": "", "observed_generation": int64(0),
		"last_updated_time": "", "last_transition_time": ""}, nil
}

func fields(env *rules.Env, n *yaml.Node) ([]field, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: this is no mapping of names to CEL expressions", n.Line)
	}
	var all []field
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, err := json.Marshal(key.Value)
		if err != nil {
			return nil, err
		}
		m := field{name: string(name)}
		switch {
		case value.Kind == yaml.MappingNode:
			m.children, err = fields(env, value)
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			err = fmt.Errorf("line %d: %s: this is no CEL expression, number or boolean", value.Line, key.Value)
		case value.Tag == "!!str":
			if m.program, err = env.Compile(value.Value, rules.Any); err != nil {
				err = fmt.Errorf("line %d: %s: %w", value.Line, key.Value, err)
			}
		default:
			var literal any
			if err = value.Decode(&literal); err == nil {
				m.literal, err = json.Marshal(literal)
			}
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// Facts are what rules see of a resource.
type Facts struct {
	resource   map[string]any
	conditions map[string]any
	reported   time.Time // the last report, or the last change when there is none
}

// FactsOf reads a resource's wire form.
func FactsOf(wire []byte) (Facts, error) {
	f := Facts{conditions: map[string]any{}}
	if err := json.Unmarshal(wire, &f.resource); err != nil {
		return f, fmt.Errorf("reading a resource: %w", err)
	}
	if f.resource == nil {
		return f, errors.New("reading a resource: it is null")
	}
	for name, v := range f.resource {
		if n, ok := v.(float64); ok && n == float64(int64(n)) {
			f.resource[name] = int64(n)
		}
	}
	later := func(v any) {
		text, _ := v.(string)
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.After(f.reported) {
			f.reported = t
		}
	}
	status, _ := f.resource["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, item := range list {
		c, _ := item.(map[string]any)
		name, ok := c["type"].(string)
		if !ok {
			continue
		}
		if n, ok := c["observed_generation"].(float64); ok {
			c["observed_generation"] = int64(n)
		}
		f.conditions[name] = c
		later(c["last_updated_time"])
	}
	if f.reported.IsZero() {
		later(f.resource["created_time"])
		later(f.resource["updated_time"])
	}
	return f, nil
}

// matches reports whether the resource has all labels of the selector.
func (r *Rules) matches(f Facts) bool {
	labels, _ := f.resource["labels"].(map[string]any)
	for _, l := range r.selector {
		if labels[l.Label] != l.Value {
			return false
		}
	}
	return true
}

// Publication describes the last event of a resource that the broker took.
type Publication struct {
	Generation int64     // the resource's at that time; 0: no event yet
	At         time.Time // when the broker took it
	Attempts   int       // events since the resource made progress
}

// Decide reports whether a resource needs an event.
func (r *Rules) Decide(ctx context.Context, f Facts, t Publication, now time.Time) (bool, error) {
	latest := f.reported
	if t.At.After(latest) {
		latest = t.At
	}
	vars, err := r.params.Eval(ctx, map[string]any{
		"resource": f.resource, "conditions": f.conditions, "now": now, "last_activity": latest,
		"event": map[string]any{"generation": t.Generation, "time": t.At, "attempts": int64(t.Attempts)},
	})
	if err != nil {
		return false, err
	}
	out, err := r.result.Eval(ctx, vars)
	if err != nil {
		return false, err
	}
	return out.Value == true, nil
}

// How far and how exactly Flip looks ahead.
const (
	flipHorizon = 24 * time.Hour
	flipFirst   = time.Second
	flipExact   = 50 * time.Millisecond
	flipPart    = 64 // of the distance
)

// Flip returns when a decision that is false now becomes true if nothing
// happens: at most 1/32 of the time to it later, or 50 ms. It looks a day
// ahead; what becomes true later, or not at all, gets that day, to be asked
// again. Without a look at the clock it is the zero time: never.
func (r *Rules) Flip(ctx context.Context, f Facts, t Publication, now time.Time) (time.Time, error) {
	if !r.timed {
		return time.Time{}, nil
	}
	var failed error
	at := func(when time.Time) bool {
		yes, err := r.Decide(ctx, f, t, when)
		failed = errors.Join(failed, err)
		return yes
	}
	latest := f.reported
	if t.At.After(latest) {
		latest = t.At
	}
	// Most often it is as far from the last activity as it was last time.
	if d := time.Duration(r.distance.Load()); d > 0 {
		guess := latest.Add(d)
		if before := guess.Add(-d / 32); before.After(now) && !at(before) && at(guess) && failed == nil {
			return guess, nil
		}
	}
	low, high := time.Duration(0), flipFirst
	for !at(now.Add(high)) {
		if failed != nil || high >= flipHorizon {
			return now.Add(flipHorizon), failed
		}
		low, high = high, min(2*high, flipHorizon)
	}
	for high-low > max(high/flipPart, flipExact) && failed == nil {
		if middle := low + (high-low)/2; at(now.Add(middle)) {
			high = middle
		} else {
			low = middle
		}
	}
	r.distance.Store(int64(now.Add(high).Sub(latest)))
	return now.Add(high), failed
}

// Data is an event's data. A member whose expression fails or is null is left
// out, as HyperFleet does; the error says which failed.
func (r *Rules) Data(ctx context.Context, f Facts, reason string) (json.RawMessage, error) {
	if r.data == nil {
		return standardData(f.resource)
	}
	var failed []error
	body, _ := r.build(ctx, r.data, map[string]any{"resource": f.resource, "reason": reason}, &failed)
	if body == nil {
		body = []byte("{}")
	}
	return body, errors.Join(failed...)
}

func (r *Rules) build(ctx context.Context, all []field, vars map[string]any, failed *[]error) (json.RawMessage, bool) {
	var out []byte
	for _, m := range all {
		value := m.literal
		switch {
		case m.children != nil:
			value, _ = r.build(ctx, m.children, vars, failed)
		case m.program != nil:
			result, err := m.program.Eval(ctx, vars)
			if err == nil && result.Value != nil {
				value, err = json.Marshal(result.Value)
			}
			if err != nil {
				*failed = append(*failed, fmt.Errorf("message_data %s: %w", m.name, err))
			}
		}
		if value == nil {
			continue
		}
		separator := byte(',')
		if out == nil {
			separator = '{'
		}
		out = append(append(append(append(out, separator), m.name...), ':'), value...)
	}
	if out == nil {
		return nil, false
	}
	return append(out, '}'), true
}

// standardData is the reference's example.
func standardData(resource map[string]any) (json.RawMessage, error) {
	type reference struct {
		ID   any `json:"id"`
		Kind any `json:"kind"`
		Href any `json:"href"`
	}
	data := struct {
		reference
		Generation any        `json:"generation"`
		Owner      *reference `json:"owner_references,omitempty"`
	}{reference{resource["id"], resource["kind"], resource["href"]}, resource["generation"], nil}
	if owner, ok := resource["owner_references"].(map[string]any); ok {
		data.Owner = &reference{owner["id"], owner["kind"], owner["href"]}
	}
	return json.Marshal(data)
}
