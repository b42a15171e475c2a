package adapter

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// fedBack is {feedback: NAME, default: D}: the value that came back of the work's object, as the
// default's type. While none came back it is the last report's value at the same place, else the
// default.
type fedBack struct {
	name     string
	object   string // the nested discovery
	path     []string
	fallback any
}

// firstSeen is {since: EXPRESSION}: the time at which the expression was first seen to hold, which
// the last report remembers; "" until then.
type firstSeen struct {
	when *expr
	path []string
	now  func() time.Time
}

func (c *compiler) compileReportData(v Value) node { return c.compileDocument(v, reportValues) }

// dataPath is the place of a value in the report's data.
func (c *compiler) dataPath(at Place, path string) []string {
	if strings.Contains(path, "[") {
		c.fail(at, "feedback and since are values of mappings, not of lists")
	}
	return strings.Split(path, ".")
}

// compileFeedback compiles {feedback: NAME}. The manifest of the work must ask for that feedback.
func (c *compiler) compileFeedback(t Text, path string, fallback Value) node {
	out := fedBack{name: t.Value, path: c.dataPath(t.Place, path), fallback: fallback.Value}
	if !fallback.Set() {
		c.fail(t.Place, "feedback needs a default, which also sets the type")
	}
	r := c.task.Post.Report
	if r == nil || r.Work == nil {
		c.fail(t.Place, "feedback belongs to the report of a work")
		return out
	}
	out.object = r.Work.Object
	for _, x := range c.task.Resources {
		if manifest := x.text(); x.Name == r.Work.Resource && manifest != "" && !hasFeedbackRule(manifest, t.Value) {
			c.lintf(t.Place, "the manifest of %s has no feedback rule %q", x.Name, t.Value)
		}
	}
	return out
}

// text is the manifest as it is written where it is a text, else "".
func (r *Resource) text() string {
	if s, ok := r.Manifest.Value.(string); ok {
		return s
	}
	return r.RefText.Value
}

// hasFeedbackRule reports whether a manifest's text names a feedback rule.
func hasFeedbackRule(manifest, name string) bool {
	return strings.Contains(manifest, "name: "+name+",") || strings.Contains(manifest, "name: "+name+"\n")
}

func (n fedBack) build(_ context.Context, in frame) (any, error) {
	resources, _ := in.vars["resources"].(map[string]any)
	if raw := feedbackText(resources[n.object], n.name); raw != "" {
		v, err := asTypeOf(n.fallback, raw)
		if err != nil {
			return nil, fmt.Errorf("feedback %s: %w", n.name, err)
		}
		if !isEmpty(v) {
			return v, nil
		}
	}
	if v := lastData(in.vars, n.path); !isEmpty(v) {
		return v, nil
	}
	return n.fallback, nil
}

func (n firstSeen) build(ctx context.Context, in frame) (any, error) {
	if v := lastData(in.vars, n.path); !isEmpty(v) {
		return v, nil
	}
	v, err := n.when.eval(ctx, in.vars)
	if err != nil || !isTrue(v) {
		return "", err
	}
	return n.now().UTC().Format(microseconds), nil
}

// asTypeOf reads a feedback's text as a value of the default's type.
func asTypeOf(sample any, text string) (any, error) {
	switch sample.(type) {
	case int64:
		return toInt(text)
	case float64:
		return toFloat(text)
	case bool:
		return toBool(text)
	case []any, map[string]any:
		return fromJSON(text)
	}
	return text, nil
}

// lastData is a value of the last report's data; nil when there is none.
func lastData(vars map[string]any, path []string) any {
	before, _ := vars["before"].(map[string]any)
	v := before["data"]
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}
