package gitops

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Position is a place in a file of the tree: config/defaults.yaml:7.
type Position struct {
	File string `json:"file"`
	Line int    `json:"line"`
}

func (p Position) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// errorf returns an error that begins with the position.
func (p Position) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", p, fmt.Errorf(format, args...))
}

// kind is the kind of a node in YAML. Values of one kind may replace each other.
type kind uint8

const (
	deleted kind = iota // null: the level deletes what it inherits
	mapping
	list
	text
	number
	truth
)

func (k kind) String() string {
	return [...]string{"null", "a mapping", "a list", "a text", "a number", "true or false"}[k]
}

// node is a value of the tree. It is not changed after it was made: trees share nodes.
type node struct {
	kind     kind
	members  map[string]*node // of a mapping
	items    []*node          // of a list
	value    any              // of a scalar: string, int64, uint64, float64 or bool
	at       Position
	replaced *node // what a more general level set
}

// maxNodes bounds the values of one file, with aliases expanded. A file of a few
// lines can mean billions of values by aliases of aliases.
const maxNodes = 100_000

// maxDepth bounds how deep the values of a file are nested. Rendered YAML is indented, so its size grows with the
// square of the depth.
const maxDepth = 100

// fileParser makes nodes of one YAML document.
type fileParser struct {
	file     string
	nodes    int
	depth    int
	expanded map[*yaml.Node]bool // anchors that enclose the current node
	mistakes []error
}

// parse reads the only document of a file, which must be a mapping. An empty file is
// an empty mapping. The error joins all mistakes, each with its position.
func parse(file string, data []byte) (root *node, err error) {
	root = &node{kind: mapping, at: Position{file, 1}}
	document, err := strictyaml.ParseDocument(file, data)
	switch {
	case err != nil:
		return nil, err
	case document == nil:
		return root, nil
	}
	p := fileParser{file: file, expanded: map[*yaml.Node]bool{}}
	root = p.node(document)
	switch {
	case len(p.mistakes) > 0:
		return nil, errors.Join(p.mistakes...)
	case root.kind == deleted:
		return &node{kind: mapping, at: root.at}, nil
	case root.kind != mapping:
		return nil, root.at.errorf("the file is %s; it must be a mapping of keys", root.kind)
	}
	return root, nil
}

func (p *fileParser) addMistake(y *yaml.Node, format string, args ...any) *node {
	at := Position{p.file, y.Line}
	p.mistakes = append(p.mistakes, at.errorf(format, args...))
	return &node{kind: deleted, at: at}
}

func (p *fileParser) node(y *yaml.Node) *node {
	if p.nodes++; p.nodes > maxNodes {
		if p.nodes == maxNodes+1 {
			return p.addMistake(y, "the file has more than %d values", maxNodes)
		}
		return &node{kind: deleted, at: Position{p.file, y.Line}}
	}
	if p.depth == maxDepth {
		return p.addMistake(y, "the values are nested deeper than %d levels", maxDepth)
	}
	p.depth++
	defer func() { p.depth-- }()
	n := &node{at: Position{p.file, y.Line}}
	switch y.Kind {
	case yaml.AliasNode:
		if p.expanded[y.Alias] {
			return p.addMistake(y, "the alias *%s contains itself", y.Value)
		}
		p.expanded[y.Alias] = true
		defer delete(p.expanded, y.Alias)
		n = p.node(y.Alias)
	case yaml.MappingNode:
		p.expanded[y] = true
		defer delete(p.expanded, y)
		n.kind, n.members = mapping, make(map[string]*node, len(y.Content)/2)
		for i := 0; i < len(y.Content); i += 2 {
			p.addMember(n, y.Content[i], y.Content[i+1])
		}
	case yaml.SequenceNode:
		p.expanded[y] = true
		defer delete(p.expanded, y)
		n.kind = list
		for _, item := range y.Content {
			n.items = append(n.items, p.node(item))
		}
	case yaml.ScalarNode:
		return p.scalar(n, y)
	default:
		return p.addMistake(y, "this is neither a mapping, a list nor a value")
	}
	return n
}

func (p *fileParser) addMember(of *node, key, value *yaml.Node) {
	switch before := of.members[key.Value]; {
	case key.Tag == "!!merge":
		p.addMistake(key, "<< is not supported; put what is shared into a more general level")
	case key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Value == "":
		p.addMistake(key, "the key %q is not a text; put it in quotes", key.Value)
	case before != nil:
		p.addMistake(key, "the key %s is there twice; first on line %d", key.Value, before.at.Line)
	default:
		n := p.node(value)
		n.at.Line = key.Line // where a reader looks for it, also when the value is an alias
		of.members[key.Value] = n
	}
}

func (p *fileParser) scalar(n *node, y *yaml.Node) *node {
	switch y.Tag {
	case "!!null":
		return n
	case "!!bool":
		var b bool
		if err := y.Decode(&b); err != nil {
			return p.addMistake(y, "%q is neither true nor false", y.Value)
		}
		n.kind, n.value = truth, b
	case "!!int", "!!float":
		var v any
		if err := y.Decode(&v); err != nil {
			return p.addMistake(y, "%q is not a number that can be represented", y.Value)
		}
		switch v := v.(type) {
		case int:
			n.value = int64(v)
		case float64:
			if v != v || v-v != 0 {
				return p.addMistake(y, "%q is not a number that JSON has", y.Value)
			}
			n.value = v
		default:
			n.value = v // int64, uint64
		}
		n.kind = number
	case "!!str", "!!timestamp": // a date is a text here, as it is in JSON
		n.kind, n.value = text, y.Value
	default:
		return p.addMistake(y, "the tag %s is not supported", y.Tag)
	}
	return n
}

// merge returns the settings of a level that inherits base and sets over. It changes neither.
// Mappings merge; everything else replaces. Mistakes are values that replace a value of
// another kind.
func merge(base, over *node) (*node, error) {
	var mistakes []error
	return mergeInto(base, over, "", &mistakes), errors.Join(mistakes...)
}

func mergeInto(base, over *node, path string, mistakes *[]error) *node {
	switch {
	case base == nil:
		return over
	case over == nil:
		return base
	case base.kind == mapping && over.kind == mapping:
		merged := *over
		merged.replaced = base
		merged.members = make(map[string]*node, len(base.members)+len(over.members))
		maps.Copy(merged.members, base.members) // which may be nil
		for key, value := range over.members {
			merged.members[key] = mergeInto(base.members[key], value, join(path, key), mistakes)
		}
		return &merged
	case base.kind != over.kind && base.kind != deleted && over.kind != deleted:
		*mistakes = append(*mistakes, over.at.errorf(
			"%s is %s here and %s at %s; delete it with null at a level between, or use one type", path, over.kind,
			base.kind, base.at))
	}
	merged := *over
	merged.replaced = base
	return &merged
}

// join returns the path of a member.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// get returns the value at a path, or nil. The value may be deleted.
func (n *node) get(path ...string) *node {
	for _, key := range path {
		if n == nil || n.kind != mapping {
			return nil
		}
		n = n.members[key]
	}
	return n
}

// without returns a mapping without some of its members.
func (n *node) without(keys ...string) *node {
	rest := *n
	rest.members = maps.Clone(n.members)
	for _, key := range keys {
		delete(rest.members, key)
	}
	return &rest
}

// keys returns the keys of a mapping in their order.
func (n *node) keys() []string { return slices.Sorted(maps.Keys(n.members)) }

// plain returns the value as encoding/json has it, without deleted members: nil,
// map[string]any, []any, string, int64, uint64, float64 or bool.
func (n *node) plain() any {
	if n == nil {
		return nil
	}
	switch n.kind {
	case mapping:
		m := make(map[string]any, len(n.members))
		for key, value := range n.members {
			if value.kind != deleted {
				m[key] = value.plain()
			}
		}
		return m
	case list:
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = item.plain()
		}
		return l
	}
	return n.value
}

// mappingAt returns the mapping at a path as encoding/json has it; without one it is empty.
func (n *node) mappingAt(path ...string) map[string]any {
	if m, ok := n.get(path...).plain().(map[string]any); ok {
		return m
	}
	return map[string]any{}
}
