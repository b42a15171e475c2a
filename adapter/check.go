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

// require adds a finding when a value is empty.
func (c *checker) require(at Place, key, value string) {
	if value == "" {
		c.add(at, key, "it is required")
	}
}

// requireOneOf adds a finding when a value is neither empty nor one of the allowed ones.
func (c *checker) requireOneOf(at Place, key, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		c.add(at, key, "%q is none of %s", value, strings.Join(allowed, ", "))
	}
}

// requireExactlyOne requires exactly one of the named keys.
func (c *checker) requireExactlyOne(at Place, given map[string]bool) {
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

// rejectReserved adds a finding when a name is one that the engine binds itself.
func (c *checker) rejectReserved(at Place, name string) {
	if slices.Contains(reserved, name) {
		c.add(at, "name", "%q is the engine's own", name)
	}
}

// rejectDuplicate adds a finding when seen has the name already, and adds the name to seen.
func (c *checker) rejectDuplicate(seen map[string]int, at Place, name string) {
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

// resourceName matches the names that expressions can write: resources.<name>.
var resourceName = regexp.MustCompile(`^[a-z][a-zA-Z0-9_]*$`)

// check returns the findings about the structure that need no compiler.
func (t *Task) check() Findings {
	c := &checker{}
	seen := map[string]int{}
	for _, p := range t.Params {
		if p.Let != nil {
			c.checkLetEntry(p, seen)
			continue
		}
		c.checkParam(p, seen)
	}
	seen = map[string]int{}
	for _, p := range t.Preconditions {
		c.checkPrecondition(p, seen)
	}
	seen = map[string]int{}
	for _, r := range t.Resources {
		c.checkResource(r, seen)
	}
	seen = map[string]int{}
	c.checkLet(t.Post.Let, seen)
	for _, p := range t.Post.Payloads {
		c.require(p.Place, "name", p.Name)
		c.rejectReserved(p.Place, p.Name)
		c.rejectDuplicate(seen, p.Place, p.Name)
		c.checkWhen(p.Place, p.When)
		c.requireExactlyOne(p.Place, map[string]bool{"build": p.Build.Set(), "build_ref": p.BuildRef.Value != ""})
	}
	seen = map[string]int{}
	for _, a := range t.Post.Actions {
		c.require(a.Place, "name", a.Name)
		c.rejectDuplicate(seen, a.Place, a.Name)
		c.checkWhen(a.Place, a.When)
		c.checkLog(a.Place, a.Log)
		c.checkCall(a.APICall)
	}
	c.checkReport(t)
	return c.findings
}

func (c *checker) checkParam(p Param, seen map[string]int) {
	c.require(p.Place, "name", p.Name)
	c.rejectDuplicate(seen, p.Place, p.Name)
	c.rejectReserved(p.Place, p.Name)
	c.checkWhen(p.Place, p.When)
	c.requireOneOf(p.Place, "type", p.Type, "string", "int", "int64", "float", "float64", "bool")
	at := p.Source.Place
	if at.File == "" || at.Line == 0 {
		c.add(p.Place, "source", "it is required")
		return
	}
	c.requireExactlyOne(at, map[string]bool{
		"a name": p.Source.From.Value != "", "api_call": p.Source.APICall != nil,
		"expression": p.Source.Expression.Value != "", "file": p.Source.File != nil,
	})
	c.checkCall(p.Source.APICall)
	if f := p.Source.File; f != nil {
		c.require(at, "file.path", f.Path)
	}
}

func (c *checker) checkCall(a *APICall) {
	if a == nil {
		return
	}
	c.require(a.Place, "method", a.Method)
	c.requireOneOf(a.Place, "method", strings.ToUpper(a.Method), "GET", "POST", "PUT", "PATCH", "DELETE")
	c.require(a.Place, "url", a.URL.Value)
	c.requireOneOf(a.Place, "retry_backoff", a.RetryBackoff, "exponential", "linear", "constant")
	if a.Timeout < 0 || a.RetryAttempts < 0 {
		c.add(a.Place, "", "timeout and retry_attempts are not negative")
	}
	for _, h := range a.Headers {
		c.require(a.Place, "headers.name", h.Name)
	}
}

func (c *checker) checkLog(at Place, l *LogAction) {
	if l != nil {
		c.require(at, "log.message", l.Message.Value)
		c.requireOneOf(at, "log.level", strings.ToLower(l.Level), "debug", "info", "warn", "warning", "error")
	}
}

func (c *checker) checkWhen(at Place, w *When) {
	if w != nil {
		c.require(at, "when.expression", w.Expression.Value)
	}
}

func (c *checker) checkPrecondition(p Precondition, seen map[string]int) {
	c.require(p.Place, "name", p.Name)
	c.rejectReserved(p.Place, p.Name)
	c.rejectDuplicate(seen, p.Place, p.Name)
	c.checkCall(p.APICall)
	c.checkLog(p.Place, p.Log)
	if p.APICall == nil && p.Expression.Value == "" && len(p.Conditions) == 0 && len(p.Capture) == 0 {
		c.add(p.Place, "", "one of api_call, expression, conditions is required")
	}
	if p.Expression.Value != "" && len(p.Conditions) > 0 {
		c.add(p.Place, "", "conditions and expression exclude each other")
	}
	for _, x := range p.Capture {
		c.require(x.Place, "name", x.Name)
		c.rejectReserved(x.Place, x.Name)
		c.requireExactlyOne(x.Place, map[string]bool{"field": x.Field.Value != "", "expression": x.Expression.Value != ""})
		if x.Default.Set() && x.Field.Value == "" {
			c.add(x.Place, "default", "it goes with field only")
		}
	}
	for _, x := range p.Conditions {
		c.checkCondition(x)
	}
}

func (c *checker) checkCondition(x Condition) {
	c.require(x.Place, "field", x.Field.Value)
	c.require(x.Place, "operator", x.Operator)
	c.requireOneOf(x.Place, "operator", x.Operator, operators...)
	if x.Value.Set() && x.Values.Set() {
		c.add(x.Place, "", "value and values exclude each other")
	}
	given := x.Value.Set() || x.Values.Set()
	switch x.Operator {
	case "", "exists", "notExists": // a value has no effect
	case "in", "notIn":
		if _, ok := x.expectedValue().([]any); !ok {
			c.add(x.Place, "values", "%s needs a list", x.Operator)
		}
	default:
		if !given {
			c.add(x.Place, "value", "%s needs one", x.Operator)
		}
	}
}

func (c *checker) checkResource(r Resource, seen map[string]int) {
	c.require(r.Place, "name", r.Name)
	c.rejectDuplicate(seen, r.Place, r.Name)
	c.checkName(r.Place, r.Name)
	if !r.Manifest.Set() {
		c.add(r.Place, "manifest", "it is required")
	}
	if t := r.Transport; t != nil {
		c.require(t.Place, "client", t.Client)
		c.requireOneOf(t.Place, "client", t.Client, "kubernetes", "maestro")
		if t.Client == "maestro" && (t.Maestro == nil || t.Maestro.TargetCluster.Value == "") {
			c.add(t.Place, "maestro.target_cluster", "it is required")
		}
	}
	if r.Discovery == nil {
		c.add(r.Place, "discovery", "it is required")
	}
	c.checkDiscovery(r.Discovery)
	for _, n := range r.Nested {
		c.require(n.Place, "name", n.Name)
		if n.Name != r.Name { // the resource itself hides a nested discovery of its name, as in the original
			c.rejectDuplicate(seen, n.Place, n.Name) // they share resources.<name>
		}
		c.checkName(n.Place, n.Name)
		if n.Discovery == nil {
			c.add(n.Place, "discovery", "it is required")
		}
		c.checkDiscovery(n.Discovery)
	}
	c.checkLifecycle(r.Lifecycle)
}

func (c *checker) checkName(at Place, name string) {
	if name != "" && !resourceName.MatchString(name) {
		c.add(at, "name", "%q cannot be written in an expression: letters and digits, the first a small one", name)
	}
}

func (c *checker) checkDiscovery(d *Discovery) {
	if d == nil {
		return
	}
	c.requireExactlyOne(d.Place, map[string]bool{"by_name": d.ByName.Value != "", "by_selectors": d.BySelectors != nil})
	if s := d.BySelectors; s != nil && len(s.LabelSelector) == 0 {
		c.add(d.Place, "by_selectors.label_selector", "it needs a label")
	}
}

func (c *checker) checkLifecycle(l *Lifecycle) {
	if l == nil {
		return
	}
	if l.Create != nil {
		c.checkLifecycleWhen(l.Place, "create", l.Create.When)
	}
	if l.Delete != nil {
		c.checkLifecycleWhen(l.Place, "delete", l.Delete.When)
		c.requireOneOf(l.Place, "delete.propagationPolicy", l.Delete.PropagationPolicy, "Background", "Foreground", "Orphan")
	}
}

func (c *checker) checkLifecycleWhen(at Place, key string, w *When) {
	if w == nil || w.Expression.Value == "" {
		c.add(at, key+".when.expression", "it is required")
	}
}
