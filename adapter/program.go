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
	when      *expr // nil: the resource takes part in every run
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
		p.params = append(p.params, c.compileParam(x))
	}
	for _, x := range t.Preconditions {
		p.preconditions = append(p.preconditions, c.compilePrecondition(x))
	}
	for _, x := range t.Resources {
		r := c.compileResource(x)
		p.lifecycle = p.lifecycle || r.create != nil || r.remove != nil
		p.resources = append(p.resources, r)
	}
	if t.Post.Report != nil {
		for _, name := range engineNames {
			c.known[name] = true
		}
	}
	p.let = c.compileLet(t.Post.Let)
	for _, x := range t.Post.Payloads {
		p.payloads = append(p.payloads, payload{x.Name, c.compileWhen(x.When), c.compileDocument(x.Build, definitions)})
		c.known[x.Name] = true
	}
	for _, x := range t.Post.Actions {
		p.actions = append(p.actions, action{x.Name, c.compileWhen(x.When), c.compileLog(x.Log), c.compileCall(x.APICall)})
	}
	if r := t.Post.Report; r != nil {
		s := c.compileReport(r)
		c.known[reportPayload] = true
		p.work, p.reports = s.work, true
		p.payloads = append(p.payloads, payload{name: reportPayload, build: s})
		p.actions = append(p.actions, c.compileReportAction(r))
	}
	p.envs = slices.Sorted(maps.Keys(c.envs))
	return p
}

func (c *compiler) compileParam(x Param) param {
	if x.Let != nil {
		return param{Param: x, let: c.compileLet(x.Let)}
	}
	out := param{Param: x, call: c.compileCall(x.Source.APICall)}
	out.when = c.compileWhen(x.When)
	if x.Source.Expression.Value != "" {
		out.expr = c.compileExpr(x.Source.Expression)
	}
	if from := x.Source.From.Value; from != "" {
		c.checkSource(x.Source.From.Place, from)
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

func (c *compiler) checkSource(at Place, from string) {
	first, rest, _ := strings.Cut(from, ".")
	switch {
	case first == "event" && !slices.Contains(eventFields, rest):
		c.lintf(at, "an event has no %q; it has %s", rest, strings.Join(eventFields, ", "))
	case first == "config" && c.config != nil:
		if _, err := (&field{names: strings.Split(rest, "."), text: from}).find(c.config.forTasks()); err != nil {
			c.lintf(at, "the adapter's config has no %s", rest)
		}
	case first == "secret" || first == "configmap":
		c.lintf(at, "the source %s was removed; mount a file, or set a variable", first)
	case first != "env" && first != "event" && first != "config" && !c.known[first] &&
		!slices.Contains(eventFields, from):
		c.lintf(at, "%q is neither event, env or config, nor an earlier param", first)
	}
}

func (c *compiler) compileCall(a *APICall) *call {
	if a == nil {
		return nil
	}
	out := &call{
		method: strings.ToUpper(a.Method), url: c.compileTemplate(a.URL), body: c.compileTemplate(a.Body),
		timeout: a.Timeout, attempts: a.RetryAttempts, backoff: a.RetryBackoff,
	}
	for _, h := range a.Headers {
		out.headers = append(out.headers, header{h.Name, c.compileTemplate(h.Value)})
	}
	c.checkURL(out.method, a.URL)
	return out
}

func (c *compiler) compileLog(l *LogAction) *logAction {
	if l == nil {
		return nil
	}
	return &logAction{c.compileTemplate(l.Message), strings.ToLower(l.Level)}
}

func (c *compiler) compilePrecondition(x Precondition) precondition {
	out := precondition{name: x.Name, log: c.compileLog(x.Log), call: c.compileCall(x.APICall)}
	if x.APICall != nil {
		c.warn(x.APICall.Place, "api_call of a precondition is deprecated; use a param with source.api_call")
		c.known[x.Name] = true
	}
	c.anyName = x.APICall != nil
	for _, y := range x.Capture {
		k := capture{name: y.Name, absent: y.Default}
		if y.Expression.Value != "" {
			k.expr = c.compileExpr(y.Expression)
		} else {
			k.field = c.compileField(y.Field)
		}
		out.captures = append(out.captures, k)
	}
	c.anyName = false
	for _, y := range x.Capture {
		c.known[y.Name] = true
	}
	for _, y := range x.Conditions {
		f := c.compileField(y.Field)
		if f.names != nil {
			c.checkNames(y.Field.Place, f.names[:1])
		}
		out.conditions = append(out.conditions, condition{f, y.Operator, y.expectedValue()})
	}
	if x.Expression.Value != "" {
		out.expr = c.compileExpr(x.Expression)
	}
	return out
}

func (c *compiler) compileResource(x Resource) resource {
	out := resource{name: x.Name, recreate: x.RecreateOnChange}
	if t := x.Transport; t != nil && t.Client == "maestro" && t.Maestro != nil {
		out.maestro, out.target = true, c.compileTemplate(t.Maestro.TargetCluster)
	}
	body, isText := x.RefText, x.RefText.Value != ""
	if s, ok := x.Manifest.Value.(string); ok {
		body, isText = Text{s, x.Manifest.Place}, true
	}
	if isText {
		out.text = c.compileTemplate(body)
		out.version, out.kind = c.compileTopLevelKey(body, "apiVersion"), c.compileTopLevelKey(body, "kind")
		if !strings.Contains(body.Value, "{{") {
			c.checkStaticManifest(body)
		}
	} else {
		m, _ := x.Manifest.Value.(map[string]any)
		if _, unread := refOf(x.Manifest.Value); !unread {
			c.checkManifest(x.Manifest.Place, m, "")
		}
		out.manifest = c.compileDocument(x.Manifest, templates)
		version, _ := m["apiVersion"].(string)
		kind, _ := m["kind"].(string)
		out.version, out.kind = c.compileTemplate(
			Text{version, x.Manifest.Place},
		), c.compileTemplate(
			Text{kind, x.Manifest.Place},
		)
	}
	if x.Discovery != nil {
		out.discovery = c.compileDiscovery(x.Discovery)
	}
	for _, n := range x.Nested {
		if n.Name == x.Name {
			c.warn(n.Place, "%q is the name of the resource itself: it is never found by this name", n.Name)
			continue
		}
		if n.Discovery != nil {
			out.nested = append(out.nested, nested{n.Name, c.compileDiscovery(n.Discovery)})
		}
	}
	if x.When != nil {
		out.when = c.compileWhen(x.When)
	}
	if l := x.Lifecycle; l != nil {
		if l.Create != nil {
			out.create = c.compileWhen(l.Create.When)
		}
		if l.Delete != nil {
			out.remove, out.policy = c.compileWhen(l.Delete.When), l.Delete.PropagationPolicy
		}
	}
	return out
}

// checkStaticManifest checks a manifest's text without templates.
func (c *compiler) checkStaticManifest(body Text) {
	var v Value
	if found := decodeValue(body.Place.File, []byte(body.Value), &v); found != nil {
		for _, f := range found {
			f.Line += body.Place.Line - 1
			c.errors = append(c.errors, f)
		}
		return
	}
	m, _ := v.Value.(map[string]any)
	c.checkManifest(body.Place, m, "")
}

// compileTopLevelKey finds a top-level key in a manifest's text, which cannot be parsed before it is rendered.
func (c *compiler) compileTopLevelKey(body Text, key string) *tmpl {
	value, ok := findTopLevelKey(body.Value, key)
	if !ok {
		c.lintf(body.Place, "the manifest has no %s", key)
		return &tmpl{}
	}
	return c.compileTemplate(Text{value, body.Place})
}

func findTopLevelKey(manifest, key string) (value string, ok bool) {
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

func (c *compiler) compileDiscovery(d *Discovery) discovery {
	out := discovery{namespace: c.compileTemplate(d.Namespace)}
	if d.BySelectors == nil {
		out.byName = c.compileTemplate(d.ByName)
		return out
	}
	for _, key := range sortedKeys(d.BySelectors.LabelSelector) {
		value := d.BySelectors.LabelSelector[key]
		out.labels = append(out.labels, [2]*tmpl{c.compileTemplate(Text{key, value.Place}), c.compileTemplate(value)})
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
