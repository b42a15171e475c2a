package adapter

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Text is a string that the engine compiles (an expression, a template, a path) with its place.
type Text struct {
	Value string
	Place Place
}

// Value is any YAML value: nil, bool, int64, float64, string, []any, map[string]any. Lines has the
// line of each part, by its path (a.b[0]); the path of the whole value is "".
type Value struct {
	Value any
	Lines map[string]int
	Place Place
}

// Set reports whether the file has the value, which may be null.
func (v Value) Set() bool { return v.Place.File != "" }

// decoder decodes YAML into structs by their yaml tags. It records unknown keys, duplicates and
// wrong types as findings and continues.
type decoder struct {
	file     string
	findings Findings
	walk     strictyaml.Walker
}

// newDecoder returns a decoder of the file.
func newDecoder(file string) *decoder {
	d := &decoder{file: file}
	d.walk.Report = func(n *yaml.Node, path, text string) { d.add(n, path, "%s", text) }
	return d
}

// decode decodes the only document of a file into the struct to which into points.
func decode(file string, data []byte, into any) Findings {
	root, found := parseYAML(file, data)
	if found != nil {
		return found
	}
	if root == nil {
		return Findings{{File: file, Message: "the file is empty"}}
	}
	d := newDecoder(file)
	d.value(root, reflect.ValueOf(into).Elem(), "")
	slices.SortStableFunc(d.findings, func(a, b Finding) int { return a.Line - b.Line })
	return d.findings
}

// parseYAML returns the root of the only document, nil when it is empty.
func parseYAML(file string, data []byte) (*yaml.Node, Findings) {
	root, err := strictyaml.ParseDocument(file, data)
	if err == nil {
		return root, nil
	}
	found := Finding{File: file, Message: err.Error()}
	if m, ok := errors.AsType[*strictyaml.Mistake](err); ok {
		found.Line, found.Message = m.Line, m.Text
	}
	return nil, Findings{found}
}

// add records a finding at a value.
func (d *decoder) add(n *yaml.Node, path, format string, args ...any) {
	d.findings = append(d.findings, Finding{File: d.file, Line: n.Line, Path: path, Message: fmt.Sprintf(format,
		args...)})
}

// place returns the place of a value.
func (d *decoder) place(n *yaml.Node, path string) Place { return Place{d.file, lineOf(n), path} }

// lineOf returns the line where a node's text begins; that of a block begins below its | or >.
func lineOf(n *yaml.Node) int {
	if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return n.Line + 1
	}
	return n.Line
}

// value decodes n into v.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	n, leave, ok := d.walk.Enter(n, path)
	if !ok {
		return
	}
	defer leave()
	if s, ok := v.Addr().Interface().(interface {
		decode(*decoder, *yaml.Node, string)
	}); ok {
		s.decode(d, n, path)
		return
	}
	if strictyaml.IsNull(n) { // null counts as absent
		if v.Type() == reflect.TypeFor[Text]() {
			v.Set(reflect.ValueOf(Text{Place: d.place(n, path)}))
		}
		return
	}
	switch v.Interface().(type) {
	case Text:
		if n.Kind != yaml.ScalarNode {
			d.add(n, path, "a string is expected")
			return
		}
		v.Set(reflect.ValueOf(Text{n.Value, d.place(n, path)}))
		return
	case Value:
		out := Value{Lines: map[string]int{}, Place: d.place(n, path)}
		out.Value = d.any(n, path, "", out.Lines)
		v.Set(reflect.ValueOf(out))
		return
	case time.Duration:
		dur, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			d.add(n, path, "a duration is expected, as 10s")
			return
		}
		v.SetInt(int64(dur))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path)
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.add(n, path, "a list is expected")
			return
		}
		for i, c := range n.Content {
			if strictyaml.IsNull(c) {
				d.add(c, fmt.Sprintf("%s[%d]", path, i), "it is empty")
				continue
			}
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(c, e, fmt.Sprintf("%s[%d]", path, i))
			v.Set(reflect.Append(v, e))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.walk.VisitPairs(n, path, func(key *yaml.Node, value *yaml.Node, at string) {
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(value, e, at)
			v.SetMapIndex(reflect.ValueOf(key.Value), e)
		})
	default:
		d.scalar(n, v, path)
	}
}

// scalar decodes a string, a truth value or a number.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.ScalarNode {
		if err := strictyaml.Set(v.Addr().Interface(), n.Value); err == nil {
			return
		}
	}
	d.add(n, path, "%s is expected", map[reflect.Kind]string{
		reflect.String: "a string", reflect.Bool: "true or false", reflect.Int: "a whole number", reflect.Float64: "a number",
	}[v.Kind()])
}

// structure decodes a mapping into a struct's fields by their tags. A field of type Place gets the
// place.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string) {
	fields := map[string]reflect.Value{}
	var names []string
	for i := range v.NumField() {
		if v.Field(i).Type() == reflect.TypeFor[Place]() {
			v.Field(i).Set(reflect.ValueOf(d.place(n, path)))
			continue
		}
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
			fields[name] = v.Field(i)
			names = append(names, name)
		}
	}
	d.walk.VisitPairs(n, path, func(key, value *yaml.Node, at string) {
		field, known := fields[key.Value]
		if !known {
			d.add(key, path, "unknown key %q; known are %s", key.Value, strings.Join(names, ", "))
			return
		}
		d.value(value, field, at)
	})
}

// any returns a node as a JSON-like value with integers as int64.
func (d *decoder) any(n *yaml.Node, path, within string, lines map[string]int) any {
	n, leave, ok := d.walk.Enter(n, path)
	if !ok {
		return nil
	}
	defer leave()
	lines[within] = lineOf(n)
	switch n.Kind {
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for i, c := range n.Content {
			at := fmt.Sprintf("[%d]", i)
			list = append(list, d.any(c, path+at, within+at, lines))
		}
		return list
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		d.walk.VisitPairs(n, path, func(key, value *yaml.Node, at string) {
			m[key.Value] = d.any(value, at, strictyaml.Join(within, key.Value), lines)
		})
		return m
	}
	return d.anyScalar(n, path)
}

// anyScalar returns a node that is neither a list nor a mapping.
func (d *decoder) anyScalar(n *yaml.Node, path string) any {
	switch n.Tag {
	case "!!null":
		return nil
	case "!!bool", "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err != nil {
			d.add(n, path, "%q is no value of its type", n.Value)
			return nil
		}
		switch v := v.(type) {
		case int:
			return int64(v)
		case uint64:
			return float64(v)
		}
		return v
	}
	return n.Value // dates stay texts
}
