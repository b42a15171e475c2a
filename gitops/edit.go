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
	Path   []string `json:"path"`
	Value  any      `json:"value"`            // nil sets null, which deletes what the level inherits
	Remove bool     `json:"remove,omitempty"` // removes the key, and Value does not count
}

// EditFile returns a file after some edits, and the edits that undo them. Comments stay; blank lines and the alignment
// of comments may change. file is the name that errors give it. The error names the line of a value that an edit cannot
// pass: an alias, a list or a scalar in the place of a mapping.
func EditFile(file string, data []byte, edits []Edit) (after []byte, undo []Edit, err error) {
	if _, err := parse(file, data); err != nil { // the mistakes of the file, and bounds of its size
		return nil, nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, nil, yamlError(file, err)
	}
	if document.Kind == 0 || document.Content[0].Tag == "!!null" {
		document = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode, Tag: "!!map"}}}
	}
	for _, e := range edits {
		before, err := e.do(file, document.Content[0])
		if err != nil {
			return nil, nil, err
		}
		undo = append(undo, before)
	}
	slices.Reverse(undo)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return out.Bytes(), undo, encoder.Close()
}

// do does the edit in a mapping, and returns the edit that undoes it.
func (e Edit) do(file string, root *yaml.Node) (undo Edit, err error) {
	at := root
	for i, key := range e.Path {
		if at.Kind != yaml.MappingNode {
			return Edit{}, Position{file, at.Line}.errorf("%s is no mapping; set %s by hand", strings.Join(e.Path[:i], "."),
				strings.Join(e.Path, "."))
		}
		last := i == len(e.Path)-1
		index := slices.IndexFunc(at.Content, func(n *yaml.Node) bool { return n.Value == key })
		for ; index%2 == 1; index = nextKey(at.Content, index, key) { // a value that is like the key
		}
		switch {
		case index < 0 && e.Remove:
			return Edit{Path: e.Path, Remove: true}, nil
		case index < 0:
			value, err := nodeOf(e.Value, e.Path[i+1:])
			at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
			return Edit{Path: e.Path[:i+1], Remove: true}, err
		case last && e.Remove:
			undo := Edit{Path: e.Path}
			err := at.Content[index+1].Decode(&undo.Value)
			at.Content = slices.Delete(at.Content, index, index+2)
			return undo, err
		case last || at.Content[index+1].Tag == "!!null" && !e.Remove:
			return e.replace(at.Content, index+1, i)
		}
		at = at.Content[index+1]
	}
	return Edit{}, fmt.Errorf("%s: an edit has no key", file)
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

// replace sets the value of the path's key number i, which is content[index].
func (e Edit) replace(content []*yaml.Node, index, i int) (undo Edit, err error) {
	undo = Edit{Path: e.Path[:i+1]}
	if err := content[index].Decode(&undo.Value); err != nil {
		return Edit{}, err
	}
	value, err := nodeOf(e.Value, e.Path[i+1:])
	if err != nil {
		return Edit{}, err
	}
	value.LineComment, value.HeadComment = content[index].LineComment, content[index].HeadComment
	content[index] = value
	return undo, nil
}

// nodeOf returns a value below further keys.
func nodeOf(value any, path []string) (*yaml.Node, error) {
	for _, key := range slices.Backward(path) {
		value = map[string]any{key: value}
	}
	n := &yaml.Node{}
	return n, n.Encode(value)
}

// EqualValues reports whether two values are the same as the encoding of a configuration has them.
func EqualValues(a, b any) bool {
	x, err := yaml.Marshal(a)
	y, err2 := yaml.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}
