package adapter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
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

// maxValues is how many values a document may have, with aliases expanded.
const maxValues = 100_000

// decoder decodes YAML into structs by their yaml tags. It records unknown keys, duplicates and
// wrong types as findings and continues.
type decoder struct {
	file     string
	findings Findings
	left     int
	deep     int
}

// decode decodes one document.
func decode(file string, data []byte, into any) Findings {
	d := &decoder{file: file, left: maxValues}
	root, found := parseYAML(file, data)
	if found != nil {
		return found
	}
	if root == nil {
		return Findings{{File: file, Message: "the file is empty"}}
	}
	d.value(root, reflect.ValueOf(into).Elem(), "")
	slices.SortStableFunc(d.findings, func(a, b Finding) int { return a.Line - b.Line })
	return d.findings
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// parseYAML returns the root of the only document, nil when it is empty.
func parseYAML(file string, data []byte) (_ *yaml.Node, found Findings) {
	fail := func(err error) Findings {
		f := Finding{File: file, Message: strings.TrimPrefix(err.Error(), "yaml: ")}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			f.Line, _ = strconv.Atoi(m[1])
			f.Message = strings.TrimPrefix(err.Error(), m[0])
		}
		return Findings{f}
	}
	defer func() { // the parser may panic on malformed input
		if r := recover(); r != nil {
			found = fail(fmt.Errorf("yaml: %v", r))
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fail(err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, fail(err)
		}
		return nil, Findings{{File: file, Line: more.Line, Message: "the file has more than one document"}}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, nil
	}
	return doc.Content[0], nil
}

func (d *decoder) add(n *yaml.Node, path, format string, args ...any) {
	d.findings = append(d.findings, Finding{File: d.file, Line: n.Line, Path: path, Message: fmt.Sprintf(format,
		args...)})
}

// enter follows aliases and counts the values, of which there are at most maxValues.
func (d *decoder) enter(n *yaml.Node, path string) (*yaml.Node, bool) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.left--; d.left < 0 || d.deep > 100 {
		if d.left == -1 || d.deep > 100 {
			d.add(n, path, "the file holds too much")
		}
		return n, false
	}
	return n, true
}

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
	n, ok := d.enter(n, path)
	if !ok {
		return
	}
	d.deep++
	defer func() { d.deep-- }()
	if s, ok := v.Addr().Interface().(interface {
		decode(*decoder, *yaml.Node, string)
	}); ok {
		s.decode(d, n, path)
		return
	}
	if isNull(n) { // null counts as absent
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
			if isNull(c) {
				d.add(c, fmt.Sprintf("%s[%d]", path, i), "it is empty")
				continue
			}
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(c, e, fmt.Sprintf("%s[%d]", path, i))
			v.Set(reflect.Append(v, e))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.pairs(n, path, func(key *yaml.Node, value *yaml.Node, at string) {
			e := reflect.New(v.Type().Elem()).Elem()
			d.value(value, e, at)
			v.SetMapIndex(reflect.ValueOf(key.Value), e)
		})
	default:
		d.scalar(n, v, path)
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.ScalarNode {
		if err := setScalar(v, n.Value); err == nil {
			return
		}
	}
	d.add(n, path, "%s is expected", map[reflect.Kind]string{
		reflect.String: "a string", reflect.Bool: "true or false", reflect.Int: "a whole number", reflect.Float64: "a number",
	}[v.Kind()])
}

// setScalar sets v from a text of a file, a variable or a flag.
func setScalar(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("true or false is expected")
		}
		v.SetBool(b)
	case reflect.Int:
		i, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("a whole number is expected")
		}
		v.SetInt(int64(i))
	case reflect.Int64: // time.Duration
		dur, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("a duration is expected, as 10s")
		}
		v.SetInt(int64(dur))
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return errors.New("a number is expected")
		}
		v.SetFloat(f)
	default:
		return fmt.Errorf("a %s cannot be set", v.Kind())
	}
	return nil
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
	d.pairs(n, path, func(key, value *yaml.Node, at string) {
		field, known := fields[key.Value]
		if !known {
			d.add(key, path, "unknown key %q; known are %s", key.Value, strings.Join(names, ", "))
			return
		}
		d.value(value, field, at)
	})
}

// pairs calls f for each entry of a mapping. Merged ones (<<) come first.
func (d *decoder) pairs(n *yaml.Node, path string, f func(key, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		d.add(n, path, "a mapping is expected")
		return
	}
	seen := map[string]int{}
	var own []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Tag == "!!merge" {
			continue
		}
		if key.Kind != yaml.ScalarNode {
			d.add(key, path, "a key is no string")
			continue
		}
		if first, twice := seen[key.Value]; twice {
			d.add(key, path, "the key %q is there twice; first in line %d", key.Value, first)
			continue
		}
		seen[key.Value] = key.Line
		own = append(own, key, n.Content[i+1])
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag == "!!merge" {
			d.merged(n.Content[i+1], path, seen, f)
		}
	}
	for i := 0; i < len(own); i += 2 {
		f(own[i], own[i+1], join(path, own[i].Value))
	}
}

func (d *decoder) merged(n *yaml.Node, path string, seen map[string]int, f func(key, value *yaml.Node, at string)) {
	n, ok := d.enter(n, path)
	if !ok {
		return
	}
	d.deep++
	defer func() { d.deep-- }()
	if n.Kind == yaml.SequenceNode {
		for _, c := range n.Content {
			d.merged(c, path, seen, f)
		}
		return
	}
	d.pairs(n, path, func(key, value *yaml.Node, at string) {
		if _, overridden := seen[key.Value]; !overridden {
			seen[key.Value] = key.Line
			f(key, value, at)
		}
	})
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// any returns a node as a JSON-like value with integers as int64.
func (d *decoder) any(n *yaml.Node, path, within string, lines map[string]int) any {
	n, ok := d.enter(n, path)
	if !ok {
		return nil
	}
	d.deep++
	defer func() { d.deep-- }()
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
		d.pairs(n, path, func(key, value *yaml.Node, at string) {
			m[key.Value] = d.any(value, at, join(within, key.Value), lines)
		})
		return m
	}
	return d.anyScalar(n, path)
}

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
