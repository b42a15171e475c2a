package adapter

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"atoll.dev/rules"
)

// compiler turns a task's texts into what is executed. It gathers everything
// that is wrong; what Lint alone wants to know, it gathers apart.
type compiler struct {
	config *Config
	task   *Task
	env    *rules.Env
	funcs  template.FuncMap
	errors Findings
	doubts Findings
	known  map[string]bool // the names bound so far
	// found are the names of what is discovered: resources.<name>.
	found map[string]bool
	// anyName allows all names: in captures they are an answer's members.
	anyName bool
	envs    map[string]bool // the variables that the task names (env.NAME)
}

func newCompiler(config *Config, task *Task, now func() time.Time) *compiler {
	c := &compiler{config: config, task: task, funcs: templateFuncs(now), known: map[string]bool{},
		found: map[string]bool{}, envs: map[string]bool{}}
	env, err := rules.NewEnv(rules.Options{
		Variables: map[string]rules.Type{"adapter": rules.Map, "resources": rules.Map, "event": rules.Map,
			"env": rules.Map, "config": rules.Any},
		Functions: functions(now),
	})
	if err != nil {
		panic(err) // of our own making
	}
	c.env = env
	for _, name := range []string{"adapter", "resources", "event", "env", "config"} {
		c.known[name] = true
	}
	for _, r := range task.Resources {
		c.found[r.Name] = true
		for _, n := range r.Nested {
			c.found[n.Name] = true
		}
	}
	return c
}

func (c *compiler) fail(at Place, message string) {
	c.errors = append(c.errors, Finding{File: at.File, Line: at.Line, Path: at.Path, Message: message})
}

func (c *compiler) doubt(at Place, format string, args ...any) {
	c.doubts = append(c.doubts, Finding{File: at.File, Line: at.Line, Path: at.Path, Message: fmt.Sprintf(format,
		args...)})
}

func (c *compiler) warn(at Place, format string, args ...any) {
	c.doubt(at, format, args...)
	c.doubts[len(c.doubts)-1].Warning = true
}

// uses notes names that a text reads.
func (c *compiler) uses(at Place, names []string) {
	if c.anyName {
		return
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !c.known[name] {
			c.doubt(at, "%q is not known here", name)
		}
	}
}

var envName = regexp.MustCompile(`\benv(?:\.\??|\[\??["'])([A-Za-z_][A-Za-z0-9_]*)`)

// variables notes the environment's variables that a text names. The others
// are not for it to see.
func (c *compiler) variables(text string) {
	for _, m := range envName.FindAllStringSubmatch(text, -1) {
		c.envs[m[1]] = true
	}
}

// expr is a compiled expression.
type expr struct {
	program *rules.Program
	place   Place
}

var celPlace = regexp.MustCompile(`<input>:(\d+):(\d+): (.*)`)

func (c *compiler) expr(t Text) *expr {
	out := &expr{place: t.Place}
	if strings.TrimSpace(t.Value) == "" { // the structure's check has said so
		return out
	}
	c.variables(t.Value)
	c.objects(t)
	program, undeclared, err := c.env.CompileLoose(strings.TrimSpace(t.Value))
	if wrong, ok := errors.AsType[*rules.CompileError](err); ok {
		at, message := t.Place, wrong.Summary()
		if m := celPlace.FindStringSubmatch(message); m != nil {
			line, _ := strconv.Atoi(m[1])
			at.Line += line - 1
			message = "column " + m[2] + ": " + m[3]
		}
		c.fail(at, message)
		return out
	} else if err != nil {
		c.fail(t.Place, err.Error())
		return out
	}
	c.uses(t.Place, undeclared)
	out.program = program
	return out
}

// when is nil for a condition that is not there.
func (c *compiler) when(w *When) *expr {
	if w == nil {
		return nil
	}
	return c.expr(w.Expression)
}

func (x *expr) eval(ctx context.Context, scope map[string]any) (any, error) {
	r, err := x.program.Eval(ctx, scope)
	if err != nil {
		return nil, fmt.Errorf("expression in line %d of %s: %w", x.place.Line, x.place.File, err)
	}
	return r.Value, nil
}

// field is a compiled path into a document: names with dots, or a JSONPath.
type field struct {
	text  string
	names []string    // the former
	path  *rules.Path // the latter
}

var dotted = regexp.MustCompile(`^\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

func (c *compiler) field(t Text) *field {
	text := strings.TrimSpace(t.Value)
	out := &field{text: text}
	if text == "" { // the structure's check has said so
		return out
	}
	if dotted.MatchString(text) {
		out.names = strings.Split(strings.TrimPrefix(text, "."), ".")
		return out
	}
	if !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "$") && !strings.HasPrefix(text, ".") &&
		!strings.HasPrefix(text, "[") {
		text = "." + text
	}
	path, err := rules.ParsePath(text)
	if err != nil {
		c.fail(t.Place, err.Error())
		return out
	}
	out.path = path
	return out
}

var errNotFound = errors.New("there is no such field")

// find returns the value, or all of them when there are several. errNotFound
// says that there is none.
func (f *field) find(doc map[string]any) (any, error) {
	if f.path == nil {
		var v any = doc
		for _, name := range f.names {
			m, ok := v.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s: %w", f.text, errNotFound)
			}
			if v, ok = m[name]; !ok {
				return nil, fmt.Errorf("%s: %w", f.text, errNotFound)
			}
		}
		return v, nil
	}
	found, err := f.path.Find(doc)
	switch {
	case errors.Is(err, rules.ErrCost):
		return nil, fmt.Errorf("%s: %w", f.text, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", f.text, errNotFound, err)
	case len(found) == 0:
		return nil, fmt.Errorf("%s: %w", f.text, errNotFound)
	case len(found) == 1:
		return found[0], nil
	}
	return found, nil
}

// node is a part of a document that is built.
type node interface {
	build(ctx context.Context, scope map[string]any) (any, error)
}

type (
	literal struct{ value any }
	text    struct{ *tmpl }
	list    []node
	object  []entry
	entry   struct {
		key   *tmpl
		value node
	}
	// computed is a value definition; the default stands for null.
	computed struct {
		expr   *expr
		field  *field
		absent any
	}
)

func (n literal) build(context.Context, map[string]any) (any, error) { return n.value, nil }

func (n text) build(_ context.Context, scope map[string]any) (any, error) { return n.render(scope) }

func (n list) build(ctx context.Context, scope map[string]any) (any, error) {
	out := make([]any, len(n))
	for i, x := range n {
		v, err := x.build(ctx, scope)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (n object) build(ctx context.Context, scope map[string]any) (any, error) {
	out := make(map[string]any, len(n))
	for _, e := range n {
		key, err := e.key.render(scope)
		if err != nil {
			return nil, err
		}
		if out[key], err = e.value.build(ctx, scope); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (n computed) build(ctx context.Context, scope map[string]any) (v any, err error) {
	if n.expr != nil {
		v, err = n.expr.eval(ctx, scope)
	} else {
		v, err = n.field.find(scope)
	}
	switch {
	case errors.Is(err, rules.ErrInterrupted):
		return nil, err
	case err != nil: // what it reads may not be there yet
		return n.absent, nil
	case v == nil:
		return n.absent, nil
	}
	return jsonable(v), nil
}

// jsonable writes times as texts.
func jsonable(v any) any {
	switch v := v.(type) {
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case time.Duration:
		return v.String()
	}
	return v
}

// document compiles a value whose strings are templates. With definitions,
// mappings that have field or expression are computed.
func (c *compiler) document(v Value, definitions bool) node {
	return c.node(v, v.Value, "", definitions, true)
}

func (c *compiler) node(v Value, at any, path string, definitions, top bool) node {
	place := v.Place
	if line, ok := v.Lines[path]; ok {
		place.Line = line
	}
	if path != "" {
		place.Path = join(place.Path, path)
	}
	switch at := at.(type) {
	case string:
		return text{c.template(Text{at, place})}
	case []any:
		out := make(list, len(at))
		for i, x := range at {
			out[i] = c.node(v, x, fmt.Sprintf("%s[%d]", path, i), definitions, false)
		}
		return out
	case map[string]any:
		if definitions && !top {
			if n, is := c.definition(v, at, path, place); is {
				return n
			}
		}
		var out object
		for _, key := range sortedKeys(at) {
			out = append(out, entry{c.template(Text{key, place}), c.node(v, at[key], join(path, key), definitions,
				false)})
		}
		return out
	}
	return literal{at}
}

// definition is {expression, default} or {field, default}.
func (c *compiler) definition(v Value, m map[string]any, path string, place Place) (node, bool) {
	expression, _ := m["expression"].(string)
	name, _ := m["field"].(string)
	at := func(key, value string) Text {
		p := place
		if line, ok := v.Lines[join(path, key)]; ok {
			p.Line = line
		}
		return Text{value, p}
	}
	n := computed{absent: m["default"]}
	switch {
	case expression != "" && name != "":
		c.fail(place, "expression and field exclude each other")
		return literal{}, true
	case expression != "":
		n.expr = c.expr(at("expression", expression))
	case name != "":
		n.field = c.field(at("field", name))
	default:
		return nil, false
	}
	for _, key := range sortedKeys(m) {
		if key != "expression" && key != "field" && key != "default" {
			c.warn(place, "%q beside an expression or a field is ignored", key)
		}
	}
	return n, true
}
