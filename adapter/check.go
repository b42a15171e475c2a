package adapter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"atoll.dev/internal/strictyaml"
)

// checker collects findings about a task's structure.
type checker struct{ findings Findings }

func (c *checker) add(at Place, key, format string, args ...any) {
	if key != "" {
		key = strictyaml.Join(at.Path, key)
	} else {
		key = at.Path
	}
	c.findings = append(c.findings, Finding{File: at.File, Line: at.Line, Path: key, Message: fmt.Sprintf(format,
		args...)})
}

func (c *checker) need(at Place, key, value string) {
	if value == "" {
		c.add(at, key, "it is required")
	}
}

func (c *checker) oneOf(at Place, key, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		c.add(at, key, "%q is none of %s", value, strings.Join(allowed, ", "))
	}
}

// exactlyOne requires exactly one of the named keys.
func (c *checker) exactlyOne(at Place, given map[string]bool) {
	var names, there []string
	for name, is := range given {
		names = append(names, name)
		if is {
			there = append(there, name)
		}
	}
	slices.Sort(names)
	slices.Sort(there)
	switch len(there) {
	case 0:
		c.add(at, "", "one of %s is required", strings.Join(names, ", "))
	case 1:
	default:
		c.add(at, "", "%s exclude each other", strings.Join(there, " and "))
	}
}

// own rejects names that the engine binds itself.
func (c *checker) own(at Place, name string) {
	if slices.Contains(reserved, name) {
		c.add(at, "name", "%q is the engine's own", name)
	}
}

// unique rejects a name that is there twice.
func (c *checker) unique(seen map[string]int, at Place, name string) {
	if name == "" {
		return
	}
	if first, twice := seen[name]; twice {
		c.add(at, "name", "%q is there twice; first in line %d", name, first)
		return
	}
	seen[name] = at.Line
}

// reserved are names that the engine binds itself.
var reserved = []string{"adapter", "resources", "env", "event"}

// resourceName is one that expressions can write: resources.<name>.
var resourceName = regexp.MustCompile(`^[a-z][a-zA-Z0-9_]*$`)

// check returns the findings about the structure that need no compiler.
func (t *Task) check() Findings {
	c := &checker{}
	seen := map[string]int{}
	for _, p := range t.Params {
		if p.Let != nil {
			c.letEntry(p, seen)
			continue
		}
		c.param(p, seen)
	}
	seen = map[string]int{}
	for _, p := range t.Preconditions {
		c.precondition(p, seen)
	}
	seen = map[string]int{}
	for _, r := range t.Resources {
		c.resource(r, seen)
	}
	seen = map[string]int{}
	c.let(t.Post.Let, seen)
	for _, p := range t.Post.Payloads {
		c.need(p.Place, "name", p.Name)
		c.own(p.Place, p.Name)
		c.unique(seen, p.Place, p.Name)
		c.when(p.Place, p.When)
		c.exactlyOne(p.Place, map[string]bool{"build": p.Build.Set(), "build_ref": p.BuildRef.Value != ""})
	}
	seen = map[string]int{}
	for _, a := range t.Post.Actions {
		c.need(a.Place, "name", a.Name)
		c.unique(seen, a.Place, a.Name)
		c.when(a.Place, a.When)
		c.log(a.Place, a.Log)
		c.call(a.APICall)
	}
	c.report(t)
	return c.findings
}

func (c *checker) param(p Param, seen map[string]int) {
	c.need(p.Place, "name", p.Name)
	c.unique(seen, p.Place, p.Name)
	c.own(p.Place, p.Name)
	c.when(p.Place, p.When)
	c.oneOf(p.Place, "type", p.Type, "string", "int", "int64", "float", "float64", "bool")
	at := p.Source.Place
	if at.File == "" || at.Line == 0 {
		c.add(p.Place, "source", "it is required")
		return
	}
	c.exactlyOne(at, map[string]bool{
		"a name": p.Source.From.Value != "", "api_call": p.Source.APICall != nil,
		"expression": p.Source.Expression.Value != "", "file": p.Source.File != nil,
	})
	c.call(p.Source.APICall)
	if f := p.Source.File; f != nil {
		c.need(at, "file.path", f.Path)
	}
}

func (c *checker) call(a *APICall) {
	if a == nil {
		return
	}
	c.need(a.Place, "method", a.Method)
	c.oneOf(a.Place, "method", strings.ToUpper(a.Method), "GET", "POST", "PUT", "PATCH", "DELETE")
	c.need(a.Place, "url", a.URL.Value)
	c.oneOf(a.Place, "retry_backoff", a.RetryBackoff, "exponential", "linear", "constant")
	if a.Timeout < 0 || a.RetryAttempts < 0 {
		c.add(a.Place, "", "timeout and retry_attempts are not negative")
	}
	for _, h := range a.Headers {
		c.need(a.Place, "headers.name", h.Name)
	}
}

func (c *checker) log(at Place, l *LogAction) {
	if l != nil {
		c.need(at, "log.message", l.Message.Value)
		c.oneOf(at, "log.level", strings.ToLower(l.Level), "debug", "info", "warn", "warning", "error")
	}
}

func (c *checker) when(at Place, w *When) {
	if w != nil {
		c.need(at, "when.expression", w.Expression.Value)
	}
}

func (c *checker) precondition(p Precondition, seen map[string]int) {
	c.need(p.Place, "name", p.Name)
	c.own(p.Place, p.Name)
	c.unique(seen, p.Place, p.Name)
	c.call(p.APICall)
	c.log(p.Place, p.Log)
	if p.APICall == nil && p.Expression.Value == "" && len(p.Conditions) == 0 && len(p.Capture) == 0 {
		c.add(p.Place, "", "one of api_call, expression, conditions is required")
	}
	if p.Expression.Value != "" && len(p.Conditions) > 0 {
		c.add(p.Place, "", "conditions and expression exclude each other")
	}
	for _, x := range p.Capture {
		c.need(x.Place, "name", x.Name)
		c.own(x.Place, x.Name)
		c.exactlyOne(x.Place, map[string]bool{"field": x.Field.Value != "", "expression": x.Expression.Value != ""})
		if x.Default.Set() && x.Field.Value == "" {
			c.add(x.Place, "default", "it goes with field only")
		}
	}
	for _, x := range p.Conditions {
		c.condition(x)
	}
}

func (c *checker) condition(x Condition) {
	c.need(x.Place, "field", x.Field.Value)
	c.need(x.Place, "operator", x.Operator)
	c.oneOf(x.Place, "operator", x.Operator, operators...)
	if x.Value.Set() && x.Values.Set() {
		c.add(x.Place, "", "value and values exclude each other")
	}
	given := x.Value.Set() || x.Values.Set()
	switch x.Operator {
	case "", "exists", "notExists": // a value has no effect
	case "in", "notIn":
		if _, ok := x.wanted().([]any); !ok {
			c.add(x.Place, "values", "%s needs a list", x.Operator)
		}
	default:
		if !given {
			c.add(x.Place, "value", "%s needs one", x.Operator)
		}
	}
}

func (c *checker) resource(r Resource, seen map[string]int) {
	c.need(r.Place, "name", r.Name)
	c.unique(seen, r.Place, r.Name)
	c.name(r.Place, r.Name)
	if !r.Manifest.Set() {
		c.add(r.Place, "manifest", "it is required")
	}
	if t := r.Transport; t != nil {
		c.need(t.Place, "client", t.Client)
		c.oneOf(t.Place, "client", t.Client, "kubernetes", "maestro")
		if t.Client == "maestro" && (t.Maestro == nil || t.Maestro.TargetCluster.Value == "") {
			c.add(t.Place, "maestro.target_cluster", "it is required")
		}
	}
	if r.Discovery == nil {
		c.add(r.Place, "discovery", "it is required")
	}
	c.discovery(r.Discovery)
	for _, n := range r.Nested {
		c.need(n.Place, "name", n.Name)
		if n.Name != r.Name { // the resource itself hides a nested discovery of its name, as in the original
			c.unique(seen, n.Place, n.Name) // they share resources.<name>
		}
		c.name(n.Place, n.Name)
		if n.Discovery == nil {
			c.add(n.Place, "discovery", "it is required")
		}
		c.discovery(n.Discovery)
	}
	c.lifecycle(r.Lifecycle)
}

func (c *checker) name(at Place, name string) {
	if name != "" && !resourceName.MatchString(name) {
		c.add(at, "name", "%q cannot be written in an expression: letters and digits, the first a small one", name)
	}
}

func (c *checker) discovery(d *Discovery) {
	if d == nil {
		return
	}
	c.exactlyOne(d.Place, map[string]bool{"by_name": d.ByName.Value != "", "by_selectors": d.BySelectors != nil})
	if s := d.BySelectors; s != nil && len(s.LabelSelector) == 0 {
		c.add(d.Place, "by_selectors.label_selector", "it needs a label")
	}
}

func (c *checker) lifecycle(l *Lifecycle) {
	if l == nil {
		return
	}
	if l.Create != nil {
		c.decides(l.Place, "create", l.Create.When)
	}
	if l.Delete != nil {
		c.decides(l.Place, "delete", l.Delete.When)
		c.oneOf(l.Place, "delete.propagationPolicy", l.Delete.PropagationPolicy, "Background", "Foreground", "Orphan")
	}
}

func (c *checker) decides(at Place, key string, w *When) {
	if w == nil || w.Expression.Value == "" {
		c.add(at, key+".when.expression", "it is required")
	}
}
