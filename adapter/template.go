package adapter

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"time"
	"unicode"

	"atoll.dev/internal/jsonvalue"
)

// tmpl is a compiled Go template, or a text without one.
type tmpl struct {
	text  string
	parts []part             // of a template that has only text and names
	full  *template.Template // of other templates; nil for a text without one
	place Place
}

// part is a text, or the path of a value.
type part struct {
	text string
	path []string
}

// compileTemplate compiles a text. Errors are findings.
func (c *compiler) compileTemplate(t Text) *tmpl {
	out := &tmpl{text: t.Value, place: t.Place}
	if !strings.Contains(t.Value, "{{") {
		return out
	}
	c.recordVariables(t.Value)
	full, err := template.New("").Funcs(c.funcs).Option("missingkey=error").Parse(t.Value)
	if err != nil {
		c.fail(t.Place, templateError(err))
		return out
	}
	if full.Tree == nil || full.Root == nil { // only comments
		out.text = ""
		return out
	}
	c.checkNames(t.Place, fieldsOf(full.Root))
	if out.parts = partsOf(full.Root); out.parts == nil {
		out.full = full
	}
	return out
}

// partsOf returns a template as parts; nil when it has more than text and names.
func partsOf(root *parse.ListNode) []part {
	parts := []part{}
	for _, n := range root.Nodes {
		switch n := n.(type) {
		case *parse.TextNode:
			parts = append(parts, part{text: string(n.Text)})
		case *parse.ActionNode:
			if len(n.Pipe.Decl) > 0 || len(n.Pipe.Cmds) != 1 || len(n.Pipe.Cmds[0].Args) != 1 {
				return nil
			}
			field, ok := n.Pipe.Cmds[0].Args[0].(*parse.FieldNode)
			if !ok {
				return nil
			}
			parts = append(parts, part{path: field.Ident})
		default:
			return nil
		}
	}
	return parts
}

// render renders the template. An unknown name is an error.
func (t *tmpl) render(scope map[string]any) (string, error) {
	if t == nil {
		return "", nil
	}
	var b strings.Builder
	switch {
	case t.full != nil:
		if err := t.full.Execute(&b, scope); err != nil {
			return "", t.wrapError(err)
		}
	case t.parts != nil:
		for _, p := range t.parts {
			if p.path == nil {
				b.WriteString(p.text)
				continue
			}
			v, err := lookupPath(scope, p.path)
			if err != nil {
				return "", t.wrapError(err)
			}
			if s, ok := v.(string); ok {
				b.WriteString(s)
			} else {
				fmt.Fprint(&b, printable(v))
			}
		}
	default:
		return t.text, nil
	}
	return b.String(), nil
}

func (t *tmpl) wrapError(err error) error {
	return fmt.Errorf("template in line %d of %s: %s", t.place.Line, t.place.File, templateError(err))
}

// printable returns v as text/template prints it.
func printable(v any) any {
	if v == nil {
		return "<no value>"
	}
	return v
}

func lookupPath(scope map[string]any, path []string) (any, error) {
	var v any = scope
	for i, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s is no mapping, it has no %s", strings.Join(path[:i], "."), name)
		}
		if v, ok = m[name]; !ok {
			return nil, fmt.Errorf("there is no %s", strings.Join(path[:i+1], "."))
		}
	}
	return v, nil
}

var (
	templatePrefix = regexp.MustCompile(`^template: :\d+(:\d+)?: `)
	noEntry        = regexp.MustCompile(`executing "" at <([^>]*)>: map has no entry for key "([^"]*)"`)
)

// templateError shortens an error of text/template to its cause.
func templateError(err error) string {
	s := templatePrefix.ReplaceAllString(err.Error(), "")
	if m := noEntry.FindStringSubmatch(s); m != nil {
		return "there is no " + strings.TrimPrefix(strings.TrimPrefix(m[1], "$"), ".")
	}
	return strings.TrimPrefix(s, `executing "" `)
}

// dot is the value of the dot at a place of a template.
type dot uint8

// The values of the dot.
const (
	scopeDot dot = iota // the scope of the template
	otherDot            // an element of range, or the value of with
)

// fieldsOf returns the first names of the paths that a template reads: a of .a.b, and of $.a.b
// anywhere. Inside range and with the dot is another value, so names after it are not included.
func fieldsOf(root *parse.ListNode) []string {
	var names []string
	var list func(n *parse.ListNode, dot dot)
	var node func(n parse.Node, dot dot)
	node = func(n parse.Node, dot dot) {
		switch n := n.(type) {
		case *parse.FieldNode:
			if dot == scopeDot {
				names = append(names, n.Ident[0])
			}
		case *parse.VariableNode:
			if n.Ident[0] == "$" && len(n.Ident) > 1 {
				names = append(names, n.Ident[1])
			}
		case *parse.ChainNode:
			node(n.Node, dot)
		case *parse.PipeNode:
			if n == nil {
				return
			}
			for _, cmd := range n.Cmds {
				for _, a := range cmd.Args {
					node(a, dot)
				}
			}
		case *parse.ActionNode:
			node(n.Pipe, dot)
		case *parse.IfNode:
			node(n.Pipe, dot)
			list(n.List, dot)
			list(n.ElseList, dot)
		case *parse.RangeNode:
			node(n.Pipe, dot)
			list(n.List, otherDot)
			list(n.ElseList, dot)
		case *parse.WithNode:
			node(n.Pipe, dot)
			list(n.List, otherDot)
			list(n.ElseList, dot)
		}
	}
	list = func(n *parse.ListNode, dot dot) {
		if n != nil {
			for _, c := range n.Nodes {
				node(c, dot)
			}
		}
	}
	list(root, scopeDot)
	return names
}

// reads reports whether the template reads a name of the scope.
func (t *tmpl) reads(name string) bool {
	switch {
	case t == nil:
		return false
	case t.full != nil:
		return slices.Contains(fieldsOf(t.full.Root), name)
	}
	return slices.ContainsFunc(t.parts, func(p part) bool { return len(p.path) > 0 && p.path[0] == name })
}

// templateFuncs returns the functions of templates. eq, lt, printf and the like accept numbers of
// different types.
func templateFuncs(now func() time.Time) template.FuncMap {
	format := func(layout string, t time.Time) string { return t.Format(layout) }
	order := func(holds func(int) bool) func(a, b any) (bool, error) {
		return func(a, b any) (bool, error) {
			c, ok := compare(a, b)
			if !ok {
				return false, errors.New("incompatible types for comparison")
			}
			return holds(c), nil
		}
	}
	return template.FuncMap{
		"now":        func() time.Time { return now().UTC() },
		"date":       format,
		"dateFormat": format,
		"lower":      strings.ToLower,
		"upper":      strings.ToUpper,
		"title":      title,
		"trim":       strings.TrimSpace,
		"trimPrefix": strings.TrimPrefix,
		"trimSuffix": strings.TrimSuffix,
		"replace":    strings.ReplaceAll,
		"contains":   strings.Contains,
		"hasPrefix":  strings.HasPrefix,
		"hasSuffix":  strings.HasSuffix,
		"quote":      strconv.Quote,
		"default": func(absent, v any) any {
			if v == nil || v == "" {
				return absent
			}
			return v
		},
		"int":     func(v any) int { i, _ := toInt(v); return int(i) },
		"int64":   func(v any) int64 { i, _ := toInt(v); return i },
		"float64": func(v any) float64 { f, _ := toFloat(v); return f },
		"string":  toText,
		"eq": func(a any, others ...any) bool {
			return slices.ContainsFunc(others, func(b any) bool { return jsonvalue.Equal(a, b) })
		},
		"ne":     func(a, b any) bool { return !jsonvalue.Equal(a, b) },
		"lt":     order(func(c int) bool { return c < 0 }),
		"le":     order(func(c int) bool { return c <= 0 }),
		"gt":     order(func(c int) bool { return c > 0 }),
		"ge":     order(func(c int) bool { return c >= 0 }),
		"printf": printf,
		// Ours, for manifests that are texts: JSON is YAML, so a value cannot change the manifest's
		// shape.
		"toJson": jsonInYAML,
	}
}

// title capitalizes each word.
func title(s string) string {
	inside := false
	return strings.Map(func(r rune) rune {
		before := inside
		inside = unicode.IsLetter(r) || unicode.IsDigit(r) || r == '\''
		if before {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

var verb = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]*)?[a-zA-Z%]`)

// printf is fmt.Sprintf that also formats int64 with %f and whole float64 with %d: authors do not
// know which of them a document's number is.
func printf(format string, args ...any) string {
	args = slices.Clone(args)
	i := 0
	for _, v := range verb.FindAllString(format, -1) {
		last := v[len(v)-1]
		if last == '%' {
			continue
		}
		if i >= len(args) {
			break
		}
		switch x := args[i].(type) {
		case int64:
			if strings.ContainsRune("eEfFgG", rune(last)) {
				args[i] = float64(x)
			}
		case float64:
			if last == 'd' && x == float64(int64(x)) {
				args[i] = int64(x)
			}
		}
		i++
	}
	return fmt.Sprintf(format, args...)
}

// compare orders numbers, and strings.
func compare(a, b any) (int, bool) {
	x, ok := toNumber(a)
	y, ok2 := toNumber(b)
	switch {
	case ok && ok2 && x < y:
		return -1, true
	case ok && ok2 && x > y:
		return 1, true
	case ok && ok2:
		return 0, true
	}
	s, ok := a.(string)
	t, ok2 := b.(string)
	return strings.Compare(s, t), ok && ok2
}

func toNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}
