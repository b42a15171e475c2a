package gitops

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Edit sets a value in a file of the tree, or removes a key.
type Edit struct {
	Path []string `json:"path"`
	// Value is the value to set; nil sets null, which deletes the value that the level inherits.
	Value any `json:"value,omitempty"`
	// Text is the value as YAML. It replaces Value. The undo of an edit has it, since JSON rounds large numbers.
	Text   string `json:"text,omitempty"`
	Remove bool   `json:"remove,omitempty"` // removes the key; neither Value nor Text counts
	// IfEmpty: the edit changes nothing unless the file has an empty mapping at Path.
	IfEmpty bool `json:"ifEmpty,omitempty"`
}

// EditFile returns a file after some edits, and the edits that undo them. Comments stay; blank lines and the alignment
// of comments may change. file is the name that errors give it. The error names the line of a value that an edit cannot
// pass: an alias, a list or a scalar in the place of a mapping.
//
// The undo removes a mapping that the edits made only if it is empty by then: others may have added keys to it.
func EditFile(file string, data []byte, edits []Edit) (after []byte, undo []Edit, err error) {
	if _, err := parse(file, data); err != nil { // the mistakes of the file, and bounds of its size
		return nil, nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	if document.Kind == 0 || document.Content[0].Tag == "!!null" {
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode, Tag: "!!map"}}}
	}
	writeNulls(&document)
	for _, e := range edits {
		before, err := e.apply(file, document.Content[0])
		if err != nil {
			return nil, nil, err
		}
		undo = append(before, undo...) // the last edit is undone first
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return out.Bytes(), undo, encoder.Close()
}

// writeNulls writes null for each value that is missing in braces or brackets, as in {mc01: }: the library writes such
// a value as an empty text.
func writeNulls(n *yaml.Node) {
	for _, member := range n.Content {
		if n.Style&yaml.FlowStyle != 0 && member.Kind == yaml.ScalarNode && member.Tag == "!!null" && member.Value == "" {
			member.Value = "null"
		}
		writeNulls(member)
	}
}

// apply makes the edit in a mapping, and returns the edits that undo it.
func (e Edit) apply(file string, root *yaml.Node) (undo []Edit, err error) {
	at := root
	for i, key := range e.Path {
		if at.Kind != yaml.MappingNode {
			return nil, Position{file, at.Line}.errorf("%s is no mapping; set %s by hand", strings.Join(e.Path[:i], "."),
				strings.Join(e.Path, "."))
		}
		index := slices.IndexFunc(at.Content, func(n *yaml.Node) bool { return n.Value == key })
		for ; index%2 == 1; index = nextKey(at.Content, index, key) { // a value that is like the key
		}
		if index < 0 {
			if e.Remove || e.IfEmpty {
				return nil, nil
			}
			value, err := e.node(e.Path[i+1:])
			at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
			return e.removalEdits(i + 1), err
		}
		value := at.Content[index+1]
		isNull := value.Tag == "!!null"
		switch last := i == len(e.Path)-1; {
		case last && e.IfEmpty && (value.Kind != yaml.MappingNode || len(value.Content) > 0), !last && isNull && (e.Remove ||
			e.IfEmpty):
			return nil, nil
		case last && e.Remove:
			at.Content = slices.Delete(at.Content, index, index+2)
			text, err := textOf(value)
			return []Edit{{Path: e.Path, Text: text}}, err
		case last:
			text, err := textOf(value)
			if err != nil {
				return nil, err
			}
			return []Edit{{Path: e.Path, Text: text}}, e.replace(at.Content, index+1, i)
		case isNull:
			undo := append(e.removalEdits(i+2), Edit{Path: e.Path[:i+1], Text: "null\n", IfEmpty: true})
			return undo, e.replace(at.Content, index+1, i)
		}
		at = value
	}
	return nil, fmt.Errorf("%s: an edit has no key", file)
}

// nextKey returns the index of the key after an index, or -1.
func nextKey(content []*yaml.Node, after int, key string) int {
	for i := after + 1; i < len(content); i += 2 {
		if content[i].Value == key {
			return i
		}
	}
	return -1
}

// removalEdits returns the edits that remove the key of the edit, and then each mapping around it that is empty, down
// to a path of shortest keys.
func (e Edit) removalEdits(shortest int) []Edit {
	all := []Edit{{Path: e.Path, Remove: true}}
	for n := len(e.Path) - 1; n >= shortest; n-- {
		all = append(all, Edit{Path: e.Path[:n], Remove: true, IfEmpty: true})
	}
	return all
}

// replace sets the value of the path's key number i, which is content[index].
func (e Edit) replace(content []*yaml.Node, index, i int) error {
	value, err := e.node(e.Path[i+1:])
	if err != nil {
		return err
	}
	value.LineComment, value.HeadComment = content[index].LineComment, content[index].HeadComment
	content[index] = value
	return nil
}

// node returns the value of the edit below further keys.
func (e Edit) node(path []string) (*yaml.Node, error) {
	value := e.Value
	if e.Text != "" {
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(e.Text), &document); err != nil {
			return nil, fmt.Errorf("the value %q of %s is not YAML: %w", e.Text, strings.Join(e.Path, "."), err)
		}
		if document.Kind == 0 {
			return nil, fmt.Errorf("the value of %s has no YAML: %q", strings.Join(e.Path, "."), e.Text)
		}
		value = document.Content[0]
	}
	for _, key := range slices.Backward(path) {
		value = map[string]any{key: value}
	}
	if n, is := value.(*yaml.Node); is {
		return n, nil
	}
	n := &yaml.Node{}
	return n, n.Encode(value)
}

// textOf returns a value as YAML, without the comments around it.
func textOf(n *yaml.Node) (string, error) {
	if n.Tag == "!!null" {
		return "null\n", nil // an empty text is a null too
	}
	n = withoutAliases(n)
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	text, err := yaml.Marshal(n)
	return string(text), err
}

// withoutAliases returns a copy of a value in which the anchored value replaces each alias. The size of the copy is
// bounded, because parse has accepted the value.
func withoutAliases(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = withoutAliases(n.Alias)
		n.Anchor = ""
		return n
	}
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	for i, member := range n.Content {
		c.Content[i] = withoutAliases(member)
	}
	return &c
}
