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

// compiler compiles a task's texts. It collects all errors, and apart from them the findings that
// only Lint reports.
type compiler struct {
	config       *Config
	task         *Task
	env          *rules.Env
	funcs        template.FuncMap
	errors       Findings
	lintFindings Findings
	known        map[string]bool // the names bound so far
	// found are the names of discovered objects: resources.<name>.
	found map[string]bool
	// anyName allows all names: captures see the members of an answer as names.
	anyName bool
	envs    map[string]bool // the variables that the task names (env.NAME)
	now     func() time.Time
}

func newCompiler(config *Config, task *Task, now func() time.Time) *compiler {
	c := &compiler{config: config, task: task, funcs: templateFuncs(now), known: map[string]bool{},
		found: map[string]bool{}, envs: map[string]bool{}, now: now}
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

// fail records an error.
func (c *compiler) fail(at Place, message string) {
	c.errors = append(c.errors, Finding{File: at.File, Line: at.Line, Path: at.Path, Message: message})
}

// lintf records a finding for Lint.
func (c *compiler) lintf(at Place, format string, args ...any) {
	c.lintFindings = append(c.lintFindings, Finding{File: at.File, Line: at.Line, Path: at.Path, Message: fmt.Sprintf(
		format,
		args...)})
}

// warn records a warning for Lint.
func (c *compiler) warn(at Place, format string, args ...any) {
	c.lintf(at, format, args...)
	c.lintFindings[len(c.lintFindings)-1].Warning = true
}

// checkNames checks the names that a text reads.
func (c *compiler) checkNames(at Place, names []string) {
	if c.anyName {
		return
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !c.known[name] {
			c.lintf(at, "%q is not known here", name)
		}
	}
}

var envName = regexp.MustCompile(`\benv(?:\.\??|\[\??["'])([A-Za-z_][A-Za-z0-9_]*)`)

// recordVariables records the environment's variables that a text names; expressions see no others.
func (c *compiler) recordVariables(text string) {
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

func (c *compiler) compileExpr(t Text) *expr {
	out := &expr{place: t.Place}
	if strings.TrimSpace(t.Value) == "" { // the structure's check has reported it
		return out
	}
	c.recordVariables(t.Value)
	c.checkObjectNames(t)
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
	c.checkNames(t.Place, undeclared)
	out.program = program
	return out
}

// compileWhen compiles a condition; nil without one.
func (c *compiler) compileWhen(w *When) *expr {
	if w == nil {
		return nil
	}
	return c.compileExpr(w.Expression)
}

// eval evaluates the expression. The error names the expression's place.
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
	names []string    // of a dotted path
	path  *rules.Path // of a JSONPath
}

var dotted = regexp.MustCompile(`^\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

func (c *compiler) compileField(t Text) *field {
	text := strings.TrimSpace(t.Value)
	out := &field{text: text}
	if text == "" { // the structure's check has reported it
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

// find returns the value, or a list when the path matches several. The error is errNotFound without
// a match.
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
