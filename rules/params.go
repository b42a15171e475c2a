package rules

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
)

// Definition is an expression that has a name.
type Definition struct{ Name, Expression string }

// Params are expressions that may read each other by name, in any order of writing. They are
// evaluated in the order of their dependencies.
type Params struct {
	env   *Env
	order []param
}

type param struct {
	name    string
	program *Program
}

// Params compiles definitions. It returns an error when a name comes twice, hides a
// variable, or depends on itself; the error names the definition.
func (e *Env) Params(defs []Definition) (_ *Params, err error) {
	defer panicToError(&err)
	parsed := map[string]*cel.Ast{}
	needs := map[string]map[string]bool{}
	for _, d := range defs {
		if _, twice := parsed[d.Name]; twice || e.isDeclared(d.Name) {
			return nil, fmt.Errorf("rules: %s: the name is taken", d.Name)
		}
		tree, issues := e.env.Parse(d.Expression)
		if issues.Err() != nil {
			return nil, fmt.Errorf("rules: %s: %w", d.Name, &CompileError{issues.Err().Error()})
		}
		parsed[d.Name] = tree
		needs[d.Name] = map[string]bool{}
		collectVariables(tree.NativeRep().Expr(), map[string]int{}, needs[d.Name])
	}
	order, err := sortByDependency(defs, needs)
	if err != nil {
		return nil, err
	}
	p := &Params{env: e}
	for _, d := range order {
		program, err := p.env.Compile(d.Expression, Any)
		if err != nil {
			return nil, fmt.Errorf("rules: %s: %w", d.Name, err)
		}
		p.order = append(p.order, param{d.Name, program})
		// The type of a value from a document is known at evaluation only.
		env, err := p.env.env.Extend(cel.Variable(d.Name, cel.DynType))
		if err != nil {
			return nil, fmt.Errorf("rules: %s: %w", d.Name, err)
		}
		p.env = &Env{env, e.cost}
	}
	return p, nil
}

func (e *Env) isDeclared(name string) bool {
	return slices.ContainsFunc(e.env.Variables(), func(v *decls.VariableDecl) bool { return v.Name() == name })
}

// sortByDependency sorts definitions so that each follows those that it reads; otherwise they keep their
// order.
func sortByDependency(defs []Definition, needs map[string]map[string]bool) ([]Definition, error) {
	var order []Definition
	done := map[string]bool{}
	for len(order) < len(defs) {
		before := len(order)
		var stuck []string
		for _, d := range defs {
			ready := !done[d.Name]
			for n := range needs[d.Name] {
				if _, defined := needs[n]; defined && !done[n] {
					ready = false
				}
			}
			switch {
			case ready:
				done[d.Name] = true
				order = append(order, d)
			case !done[d.Name]:
				stuck = append(stuck, d.Name)
			}
		}
		if len(order) == before {
			return nil, fmt.Errorf("rules: %s: they depend on each other in a circle", strings.Join(stuck, ", "))
		}
	}
	return order, nil
}

// Env returns the environment with the definitions as variables.
func (p *Params) Env() *Env { return p.env }

// Programs returns the definitions' programs, each after those that it reads.
func (p *Params) Programs() []*Program {
	all := make([]*Program, len(p.order))
	for i, d := range p.order {
		all[i] = d.program
	}
	return all
}

// Split separates the definitions that do not depend on a variable from those that do, directly or
// through other definitions. To evaluate fixed and then varying gives the same values as to evaluate all.
func (p *Params) Split(variable string) (fixed, varying *Params) {
	fixed, varying = &Params{env: p.env}, &Params{env: p.env}
	names := []string{variable}
	for _, d := range p.order {
		if slices.ContainsFunc(names, d.program.Uses) {
			names = append(names, d.name)
			varying.order = append(varying.order, d)
		} else {
			fixed.order = append(fixed.order, d)
		}
	}
	return fixed, varying
}

// Eval returns the variables with the definitions' values added. Each definition has a cost limit
// of its own. The error names the definition that failed.
func (p *Params) Eval(ctx context.Context, vars map[string]any) (map[string]any, error) {
	all := maps.Clone(vars)
	if all == nil {
		all = map[string]any{}
	}
	if err := p.EvalInto(ctx, all); err != nil {
		return nil, err
	}
	return all, nil
}

// EvalInto is Eval, but it adds the values to vars. After an error vars has some of them.
func (p *Params) EvalInto(ctx context.Context, vars map[string]any) error {
	for _, d := range p.order {
		r, err := d.program.Eval(ctx, vars)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		vars[d.name] = r.Value
	}
	return nil
}
