package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Mistake is an error at a place of a file.
type Mistake struct {
	File string // "": the text has no file
	Line int    // 0: the mistake has no line
	Path string // of the value, such as rules[0].verbs; "": none, or the whole document
	Text string
}

// Error returns the place and the text: FILE:LINE: PATH: TEXT, and "line LINE" without a file.
func (m *Mistake) Error() string {
	var b strings.Builder
	switch {
	case m.File != "" && m.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", m.File, m.Line)
	case m.File != "":
		b.WriteString(m.File + ": ")
	case m.Line > 0:
		fmt.Fprintf(&b, "line %d: ", m.Line)
	}
	if m.Path != "" {
		b.WriteString(m.Path + ": ")
	}
	return b.String() + m.Text
}

// newMistake returns the mistake of an error of the library, which has the line in its text.
func newMistake(file, text string) *Mistake {
	m := &Mistake{File: file}
	if parts := lineForm.FindStringSubmatch(text); parts != nil {
		m.Line, _ = strconv.Atoi(parts[1])
		text = parts[2]
	}
	m.Text = strings.TrimPrefix(text, "yaml: ")
	return m
}

// newUnreadable returns the mistake of a text that the library cannot read.
func newUnreadable(file string, err error) *Mistake {
	m := newMistake(file, err.Error())
	m.Text = "this is not YAML: " + m.Text
	return m
}

// ParseDocument returns the root of the only document of a file, and nil when the file has no value. An error is a
// *Mistake.
func ParseDocument(file string, data []byte) (root *yaml.Node, err error) {
	defer func() { // the library panics on some documents
		if r := recover(); r != nil {
			root, err = nil, newMistake(file, fmt.Sprintf("this is not YAML: %v", r))
		}
	}()
	reader := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := reader.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, newUnreadable(file, err)
	}
	if err := reader.Decode(&more); err == nil {
		return nil, &Mistake{File: file, Line: more.Line, Text: "the file has more than one document"}
	} else if !errors.Is(err, io.EOF) {
		return nil, newUnreadable(file, err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// Bounds of a document. An alias counts as often as the document uses it.
const (
	maxValues = 100_000
	maxDepth  = 100
)

// Walker visits the values of a document for decoders that need each value's line. It follows aliases and merge keys,
// bounds the number of values, and finds keys that come twice.
type Walker struct {
	// Report is called with each mistake. The walk continues.
	Report func(n *yaml.Node, path, text string)

	values, depth int
}

// Enter follows aliases to the value, and counts it. The caller calls leave when it has read the parts of the value.
// When the document has more than maxValues values, or nests them deeper than maxDepth, ok is false, and the caller
// must not read the value.
func (w *Walker) Enter(n *yaml.Node, path string) (value *yaml.Node, leave func(), ok bool) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	w.values++
	if w.values > maxValues || w.depth > maxDepth {
		if w.values == maxValues+1 || w.depth > maxDepth {
			w.Report(n, path, "the file holds too much")
		}
		return n, func() {}, false
	}
	w.depth++
	return n, func() { w.depth-- }, true
}

// VisitPairs calls f for each entry of a mapping, entries of merged mappings (<<) first. It reports a value that is not
// a mapping, keys that are not text, and keys that come twice; of these, f gets the first.
func (w *Walker) VisitPairs(n *yaml.Node, path string, f func(key, value *yaml.Node, path string)) {
	if n.Kind != yaml.MappingNode {
		w.Report(n, path, "a mapping is expected")
		return
	}
	lines := map[string]int{} // of the keys
	var own []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Tag == "!!merge" {
			continue
		}
		if key.Kind != yaml.ScalarNode {
			w.Report(key, path, "a key is no string")
			continue
		}
		if first, twice := lines[key.Value]; twice {
			w.Report(key, path, fmt.Sprintf("the key %q is there twice; first in line %d", key.Value, first))
			continue
		}
		lines[key.Value] = key.Line
		own = append(own, key, n.Content[i+1])
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag == "!!merge" {
			w.visitMerged(n.Content[i+1], path, lines, f)
		}
	}
	for i := 0; i < len(own); i += 2 {
		f(own[i], own[i+1], Join(path, own[i].Value))
	}
}

// visitMerged calls f for the entries of merged mappings whose keys are not in lines yet.
func (w *Walker) visitMerged(n *yaml.Node, path string, lines map[string]int, f func(key, value *yaml.Node,
	path string)) {
	n, leave, ok := w.Enter(n, path)
	if !ok {
		return
	}
	defer leave()
	if n.Kind == yaml.SequenceNode {
		for _, c := range n.Content {
			w.visitMerged(c, path, lines, f)
		}
		return
	}
	w.VisitPairs(n, path, func(key, value *yaml.Node, at string) {
		if _, overridden := lines[key.Value]; !overridden {
			lines[key.Value] = key.Line
			f(key, value, at)
		}
	})
}

// Join returns the path of a member of the value at path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// IsNull reports whether a value is null.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
