package sentinel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"atoll.dev/rules"
)

// Rules are the compiled expressions of a configuration. Several goroutines may
// use them at once. Expressions have
//
//   - resource: the wire form, deleted_time included
//   - now: a timestamp
//   - condition(type): a condition of the resource; if the resource does not have
//     it, the status and the times are "" and the observed_generation is 0
//
// as HyperFleet's, and three that only this sentinel has:
//
//   - event: the last event of the resource that the broker acknowledged; its generation
//     (0: none), its time (a timestamp, of year 1 if not known), and attempts, the
//     number of events since the last progress
//   - last_activity: a timestamp, the later one of the last report and the last
//     event; the resource's last change if there was neither
//
// The expressions of message_data have resource, and reason, a text.
type Rules struct {
	timelessParams *rules.Params // the parameters that do not depend on now
	timedParams    *rules.Params // the others
	result         *rules.Program
	data           []field // nil: the default
	selector       []Label
	isTimed        bool         // the decision may depend on now
	lastDistance   atomic.Int64 // from the last activity to the time that TrueAt found last, for any resource

	resource   rules.Reads // the members of resource that the expressions and the selector read
	conditions rules.Reads // the types of conditions that the expressions read
}

// Reasons for and against events, as metrics and message_data name them.
const (
	reasonMatched   = "message decision matched"
	reasonFalse     = "message decision result is false"
	reasonError     = "message decision failed"
	reasonRequested = "reconciliation was asked for"
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
	env, err := decisionEnv()
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
	params, err := env.Params(defs)
	if err != nil {
		return nil, fmt.Errorf("message_decision.params: %w", err)
	}
	r.timelessParams, r.timedParams = params.Split("now")
	if r.result, err = params.Env().Compile(c.MessageDecision.Result, rules.Bool); err != nil {
		return nil, fmt.Errorf("message_decision.result: %w", err)
	}
	r.isTimed = strings.Contains(text, "now")
	for _, p := range append(params.Programs(), r.result) {
		r.addReads(p)
	}
	if len(r.selector) > 0 {
		r.resource.Add(rules.Members("labels"))
	}
	if c.MessageData.Kind != 0 {
		env, err = rules.NewEnv(rules.Options{Variables: map[string]rules.Type{"resource": rules.Any,
			"reason": rules.String}})
		if err != nil {
			return nil, err
		}
		if r.data, err = fields(env, &c.MessageData); err != nil {
			return nil, fmt.Errorf("message_data: %w", err)
		}
	}
	if r.addDataReads(r.data); r.data == nil { // also when message_data is empty
		r.resource.Add(rules.Members("id", "kind", "href", "generation", "owner_references"))
	}
	return r, nil
}

// addReads adds the members and the conditions of a resource that an expression reads.
func (r *Rules) addReads(p *rules.Program) {
	r.resource.Add(p.Reads("resource"))
	r.conditions.Add(p.Reads("conditions", "condition"))
}

func (r *Rules) addDataReads(all []field) {
	for _, f := range all {
		if f.program != nil {
			r.addReads(f.program)
		}
		r.addDataReads(f.children)
	}
}

// decisionEnv returns the environment of the expressions of message_decision.
func decisionEnv() (*rules.Env, error) {
	return rules.NewEnv(rules.Options{
		Variables: map[string]rules.Type{
			"resource": rules.Any, "now": rules.Timestamp, "conditions": rules.Any, "event": rules.Any,
			"last_activity": rules.Timestamp,
		},
		Functions: []rules.Function{{Name: "condition", Params: []rules.Type{rules.String}, Result: rules.Any,
			With: []string{"conditions"}, Do: condition}},
	})
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

// Data returns an event's data. It leaves out a member whose expression fails or is null,
// as HyperFleet does; the error names the members whose expressions failed.
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

// standardData returns the data of a configuration without message_data: HyperFleet's example.
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
