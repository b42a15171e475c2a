package adapter

import (
	"context"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Let is a list of named expressions, written as a mapping of names to expressions:
//
//	let:
//	  hcName: '"hc-" + sha256(clusterId).substring(0, 12)'
//	  serverName: hcName + "." + baseDomain
//
// The engine evaluates the expressions in the order of writing; each sees the names before it. An
// expression that fails fails the phase, also when it reads a member that is absent: an author who
// expects absence writes a.?b.orValue(c). An addition to HyperFleet's language (decision 069).
type Let []Named

// Named is one expression of a Let.
type Named struct {
	Place      Place
	Name       string
	Expression Text
}

// decode keeps the order of writing, which a Go map would lose.
func (l *Let) decode(d *decoder, n *yaml.Node, path string) {
	d.walk.VisitPairs(n, path, func(key, value *yaml.Node, at string) {
		if value.Kind != yaml.ScalarNode || strictyaml.IsNull(value) {
			d.add(value, at, "an expression is expected")
			return
		}
		*l = append(*l, Named{d.place(key, at), key.Value, Text{value.Value, d.place(value, at)}})
	})
}

// binding is a compiled Named.
type binding struct {
	name string
	expr *expr
}

// compileLet compiles named expressions. Later texts of the task may use each name.
func (c *compiler) compileLet(l Let) []binding {
	var out []binding
	for _, x := range l {
		out = append(out, binding{x.Name, c.compileExpr(x.Expression)})
		c.known[x.Name] = true
	}
	return out
}

// evaluateLet evaluates named expressions into the execution's scope and stops at the first that
// fails.
func (x *execution) evaluateLet(ctx context.Context, phase Phase, bindings []binding) *StepError {
	for _, b := range bindings {
		v, err := b.expr.eval(ctx, x.scope)
		if err != nil {
			return &StepError{phase, b.name, "evaluating let", err}
		}
		x.scope[b.name] = jsonable(v)
	}
	return nil
}

// checkLetEntry checks an entry of params that is a Let.
func (c *checker) checkLetEntry(p Param, seen map[string]int) {
	if p.Name != "" || p.Source.Place.File != "" || p.Type != "" || p.Default.Set() || p.When != nil || p.Required {
		c.add(p.Place, "let", "an entry with let has nothing else")
	}
	c.checkLet(p.Let, seen)
}

// checkLet checks the names of a Let.
func (c *checker) checkLet(l Let, seen map[string]int) {
	for _, x := range l {
		c.rejectReserved(x.Place, x.Name)
		c.rejectDuplicate(seen, x.Place, x.Name)
		if !variableName.MatchString(x.Name) {
			c.add(x.Place, "", "%q is no name that expressions can write", x.Name)
		}
		if x.Expression.Value == "" {
			c.add(x.Place, "", "an expression is required")
		}
	}
}
