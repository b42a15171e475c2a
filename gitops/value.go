package gitops

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Document is one file of the tree, without what it inherits.
type Document struct{ root *node }

// ParseDocument reads a file of the tree. file is the name that errors give it.
func ParseDocument(file string, data []byte) (Document, error) {
	root, err := parse(file, data)
	return Document{root}, err
}

// Value is the value of a document at a path. Without a value there, it is missing.
type Value struct {
	At   Position // of the value; where it is missing, of the nearest mapping around it
	node *node
}

// Value returns the value of the document at a path.
func (d Document) Value(path []string) Value {
	if d.root == nil {
		return Value{}
	}
	v := Value{At: d.root.at, node: d.root.get(path...)}
	for i := range path {
		if around := d.root.get(path[:i+1]...); around != nil {
			v.At = around.at
		}
	}
	return v
}

// Leaves returns the paths of all values that are no mappings, sorted.
func (d Document) Leaves() (paths [][]string) {
	if d.root == nil {
		return nil
	}
	return d.root.leaves(nil)
}

func (n *node) leaves(path []string) (paths [][]string) {
	switch n.kind {
	case deleted:
		return nil
	case mapping:
		for _, key := range n.keys() {
			paths = append(paths, n.members[key].leaves(append(slices.Clone(path), key))...)
		}
		return paths
	}
	return [][]string{path}
}

// ValueOf returns a Go value as a document has it.
func ValueOf(value any) (Value, error) {
	text, err := yaml.Marshal(map[string]any{"value": value})
	if err != nil {
		return Value{}, err
	}
	d, err := ParseDocument("value", text)
	if err != nil {
		return Value{}, err
	}
	return d.Value([]string{"value"}), nil
}

// Plain returns the value as encoding/json has it, nil where it is missing.
func (v Value) Plain() any { return v.node.plain() }

// IsMissing reports whether the document sets no value at the path. null is a value.
func (v Value) IsMissing() bool { return v.node == nil }

// Equals reports whether two values are the same, wherever they are from. Two missing values are the same.
func (v Value) Equals(other Value) bool {
	return v.IsMissing() && other.IsMissing() || v.node.equals(other.node)
}

// String returns the value as JSON, or "(none)".
func (v Value) String() string {
	if v.IsMissing() {
		return "(none)"
	}
	text, err := json.Marshal(v.node.plain())
	if err != nil {
		return fmt.Sprint(v.node.plain())
	}
	return string(text)
}

// equals reports whether two values are the same, wherever they are from. A missing value equals none.
func (n *node) equals(other *node) bool {
	return n != nil && other != nil && n.kind == other.kind && n.value == other.value &&
		maps.EqualFunc(n.members, other.members, (*node).equals) && slices.EqualFunc(n.items, other.items, (*node).equals)
}
