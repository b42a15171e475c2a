package adapter

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// program is a compiled task.
type program struct {
	params        []param
	preconditions []precondition
	resources     []resource
	let           []binding // of the phase after the resources
	work          *workView // of the standard report, nil without
	reports       bool      // the task has a standard report
	payloads      []payload
	actions       []action
	envs          []string // the variables that expressions and templates name
	lifecycle     bool     // a resource has one
}

type param struct {
	Param
	when *expr // may be nil
	call *call
	expr *expr
	let  []binding // when the entry is a let
}

type call struct {
	method   string
	url      *tmpl
	headers  []header
	body     *tmpl
	timeout  time.Duration
	attempts int
	backoff  string
}

type header struct {
	name  string
	value *tmpl
}

type precondition struct {
	name       string
	log        *logAction
	call       *call
	captures   []capture
	conditions []condition
	expr       *expr
}

type capture struct {
	name   string
	field  *field
	expr   *expr
	absent Value
}

type condition struct {
	field    *field
	operator string
	wanted   any
}

type logAction struct {
	message *tmpl
	level   string
}

type resource struct {
	name      string
	maestro   bool
	target    *tmpl
	manifest  node  // of a mapping
	text      *tmpl // of a text
	version   *tmpl // apiVersion and kind before the text is rendered
	kind      *tmpl
	discovery discovery
	nested    []nested
	recreate  bool
	create    *expr
	remove    *expr
	policy    string
}

type discovery struct {
	namespace *tmpl
	byName    *tmpl
	labels    [][2]*tmpl
}

type nested struct {
	name      string
	discovery discovery
}

type payload struct {
	name  string
	when  *expr
	build node
}

type action struct {
	name string
	when *expr
	log  *logAction
	call *call
}

// compile compiles the task in the order of execution, so that each text sees the names before it.
func (c *compiler) compile() *program {
	t, p := c.task, &program{}
	for _, x := range t.Params {
		p.params = append(p.params, c.param(x))
	}
	for _, x := range t.Preconditions {
		p.preconditions = append(p.preconditions, c.precondition(x))
	}
	for _, x := range t.Resources {
		r := c.resource(x)
		p.lifecycle = p.lifecycle || r.create != nil || r.remove != nil
		p.resources = append(p.resources, r)
	}
	if t.Post.Report != nil {
		for _, name := range engineNames {
			c.known[name] = true
		}
	}
	p.let = c.let(t.Post.Let)
	for _, x := range t.Post.Payloads {
		p.payloads = append(p.payloads, payload{x.Name, c.when(x.When), c.document(x.Build, definitions)})
		c.known[x.Name] = true
	}
	for _, x := range t.Post.Actions {
		p.actions = append(p.actions, action{x.Name, c.when(x.When), c.log(x.Log), c.call(x.APICall)})
	}
	if r := t.Post.Report; r != nil {
		s := c.report(r)
		c.known[reportPayload] = true
		p.work, p.reports = s.work, true
		p.payloads = append(p.payloads, payload{name: reportPayload, build: s})
		p.actions = append(p.actions, c.sendReport(r))
	}
	p.envs = slices.Sorted(maps.Keys(c.envs))
	return p
}

func (c *compiler) param(x Param) param {
	if x.Let != nil {
		return param{Param: x, let: c.let(x.Let)}
	}
	out := param{Param: x, call: c.call(x.Source.APICall)}
	out.when = c.when(x.When)
	if x.Source.Expression.Value != "" {
		out.expr = c.expr(x.Source.Expression)
	}
	if from := x.Source.From.Value; from != "" {
		c.source(x.Source.From.Place, from)
	}
	if x.Default.Set() {
		if _, err := convert(x.Default.Value, x.Type); err != nil {
			c.lintf(x.Default.Place, "the default is not of the type %s: %v", x.Type, err)
		}
	}
	if f := x.Source.File; f != nil && !strings.HasPrefix(f.Path, "/") {
		c.warn(x.Source.Place, "%q is no absolute path", f.Path)
	}
	c.known[x.Name] = true
	return out
}

// eventFields are the members of an event.
var eventFields = []string{"id", "kind", "href", "generation", "owner_references", "owner_references.id",
	"owner_references.kind", "owner_references.href"}

func (c *compiler) source(at Place, from string) {
	first, rest, _ := strings.Cut(from, ".")
	switch {
	case first == "event" && !slices.Contains(eventFields, rest):
		c.lintf(at, "an event has no %q; it has %s", rest, strings.Join(eventFields, ", "))
	case first == "config" && c.config != nil:
		if _, err := (&field{names: strings.Split(rest, "."), text: from}).find(c.config.visible()); err != nil {
			c.lintf(at, "the adapter's config has no %s", rest)
		}
	case first == "secret" || first == "configmap":
		c.lintf(at, "the source %s was removed; mount a file, or set a variable", first)
	case first != "env" && first != "event" && first != "config" && !c.known[first] &&
		!slices.Contains(eventFields, from):
		c.lintf(at, "%q is neither event, env or config, nor an earlier param", first)
	}
}

func (c *compiler) call(a *APICall) *call {
	if a == nil {
		return nil
	}
	out := &call{
		method: strings.ToUpper(a.Method), url: c.template(a.URL), body: c.template(a.Body),
		timeout: a.Timeout, attempts: a.RetryAttempts, backoff: a.RetryBackoff,
	}
	for _, h := range a.Headers {
		out.headers = append(out.headers, header{h.Name, c.template(h.Value)})
	}
	c.url(out.method, a.URL)
	return out
}

func (c *compiler) log(l *LogAction) *logAction {
	if l == nil {
		return nil
	}
	return &logAction{c.template(l.Message), strings.ToLower(l.Level)}
}

func (c *compiler) precondition(x Precondition) precondition {
	out := precondition{name: x.Name, log: c.log(x.Log), call: c.call(x.APICall)}
	if x.APICall != nil {
		c.warn(x.APICall.Place, "api_call of a precondition is deprecated; use a param with source.api_call")
		c.known[x.Name] = true
	}
	c.anyName = x.APICall != nil
	for _, y := range x.Capture {
		k := capture{name: y.Name, absent: y.Default}
		if y.Expression.Value != "" {
			k.expr = c.expr(y.Expression)
		} else {
			k.field = c.field(y.Field)
		}
		out.captures = append(out.captures, k)
	}
	c.anyName = false
	for _, y := range x.Capture {
		c.known[y.Name] = true
	}
	for _, y := range x.Conditions {
		f := c.field(y.Field)
		if f.names != nil {
			c.uses(y.Field.Place, f.names[:1])
		}
		out.conditions = append(out.conditions, condition{f, y.Operator, y.wanted()})
	}
	if x.Expression.Value != "" {
		out.expr = c.expr(x.Expression)
	}
	return out
}

func (c *compiler) resource(x Resource) resource {
	out := resource{name: x.Name, recreate: x.RecreateOnChange}
	if t := x.Transport; t != nil && t.Client == "maestro" && t.Maestro != nil {
		out.maestro, out.target = true, c.template(t.Maestro.TargetCluster)
	}
	body, isText := x.RefText, x.RefText.Value != ""
	if s, ok := x.Manifest.Value.(string); ok {
		body, isText = Text{s, x.Manifest.Place}, true
	}
	if isText {
		out.text = c.template(body)
		out.version, out.kind = c.scan(body, "apiVersion"), c.scan(body, "kind")
		if !strings.Contains(body.Value, "{{") {
			c.staticManifest(body)
		}
	} else {
		m, _ := x.Manifest.Value.(map[string]any)
		if _, unread := refOf(x.Manifest.Value); !unread {
			c.manifest(x.Manifest.Place, m, "")
		}
		out.manifest = c.document(x.Manifest, templates)
		version, _ := m["apiVersion"].(string)
		kind, _ := m["kind"].(string)
		out.version, out.kind = c.template(Text{version, x.Manifest.Place}), c.template(Text{kind, x.Manifest.Place})
	}
	if x.Discovery != nil {
		out.discovery = c.discovery(x.Discovery)
	}
	for _, n := range x.Nested {
		if n.Name == x.Name {
			c.warn(n.Place, "%q is the name of the resource itself: it is never found by this name", n.Name)
			continue
		}
		if n.Discovery != nil {
			out.nested = append(out.nested, nested{n.Name, c.discovery(n.Discovery)})
		}
	}
	if l := x.Lifecycle; l != nil {
		if l.Create != nil {
			out.create = c.when(l.Create.When)
		}
		if l.Delete != nil {
			out.remove, out.policy = c.when(l.Delete.When), l.Delete.PropagationPolicy
		}
	}
	return out
}

// staticManifest checks a manifest's text without templates.
func (c *compiler) staticManifest(body Text) {
	var v Value
	if found := decodeValue(body.Place.File, []byte(body.Value), &v); found != nil {
		for _, f := range found {
			f.Line += body.Place.Line - 1
			c.errors = append(c.errors, f)
		}
		return
	}
	m, _ := v.Value.(map[string]any)
	c.manifest(body.Place, m, "")
}

// scan finds a top-level key in a manifest's text, which cannot be parsed before it is rendered.
func (c *compiler) scan(body Text, key string) *tmpl {
	value, ok := scan(body.Value, key)
	if !ok {
		c.lintf(body.Place, "the manifest has no %s", key)
		return &tmpl{}
	}
	return c.template(Text{value, body.Place})
}

func scan(manifest, key string) (value string, ok bool) {
	m := regexp.MustCompile(`(?m)^` + key + `:[ \t]*(.*?)[ \t]*(?:#.*)?$`).FindStringSubmatch(manifest)
	if m == nil {
		return "", false
	}
	value = m[1]
	var s string
	if yaml.Unmarshal([]byte(value), &s) == nil && !strings.HasPrefix(value, "{") {
		value = s
	}
	return value, true
}

func (c *compiler) discovery(d *Discovery) discovery {
	out := discovery{namespace: c.template(d.Namespace)}
	if d.BySelectors == nil {
		out.byName = c.template(d.ByName)
		return out
	}
	for _, key := range sortedKeys(d.BySelectors.LabelSelector) {
		value := d.BySelectors.LabelSelector[key]
		out.labels = append(out.labels, [2]*tmpl{c.template(Text{key, value.Place}), c.template(value)})
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
