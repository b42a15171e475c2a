package gitops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// encoder encodes documents as YAML, equal ones once: most clusters have the values of others, and YAML takes most of
// the time. It may be used by several goroutines.
type encoder struct {
	known   sync.Map // YAML by JSON
	scalars sync.Map // YAML of texts, by the text
	orders  sync.Map // keys of mappings in their order, by the keys
}

// asYAML encodes a document with sorted keys, below the marker. Nobody may change the result.
func (e *encoder) asYAML(document any) ([]byte, error) {
	b, err := json.Marshal(document) // by the json tags, numbers as they are
	if err != nil {
		return nil, err
	}
	if known, found := e.known.Load(string(b)); found {
		return known.([]byte), nil
	}
	encoded, err := e.yamlOf(b)
	if err == nil {
		e.known.Store(string(b), encoded)
	}
	return encoded, err
}

// yamlOf returns a document in JSON as YAML: the bytes of the YAML library with an indent of 2. It writes mappings and
// lists itself, in a fifth of the library's time, and leaves all but the simplest texts to the library.
func (e *encoder) yamlOf(b []byte) ([]byte, error) {
	plain, err := decodeJSON(b)
	if err != nil {
		return nil, err
	}
	head := fmt.Appendf(nil, "# %s\n", marker)
	w := yamlWriter{encoder: e, out: slices.Grow(head, 2*len(b))}
	if w.writeDocument(plain); !w.isUnknown {
		return w.out, nil
	}
	return slowYAML(head[:len(head):len(head)], plain)
}

// decodeJSON returns a document with its numbers as they are.
func decodeJSON(b []byte) (plain any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err = d.Decode(&plain)
	return plain, err
}

// slowYAML appends a document as YAML to head, by the library.
func slowYAML(head []byte, plain any) ([]byte, error) {
	out := bytes.NewBuffer(head)
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(withNumbers(plain)); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

// withNumbers replaces json.Number by numbers that the YAML encoder knows.
func withNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			v[key] = withNumbers(member)
		}
	case []any:
		for i, item := range v {
			v[i] = withNumbers(item)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v.String()} // all digits, also those that no float64 has
	}
	return v
}

// yamlWriter writes a document as the YAML library does.
type yamlWriter struct {
	encoder *encoder
	out     []byte
	// isUnknown: the document has a value that only the library can write, and out is not complete.
	isUnknown bool
}

func (w *yamlWriter) writeDocument(v any) {
	switch v.(type) {
	case map[string]any, []any:
		w.writeBlock(v, 0)
	default:
		w.isUnknown = true
	}
}

// writeBlock writes the members of a mapping or a list, each in lines of its own at an indent. The first line has its
// indent already.
func (w *yamlWriter) writeBlock(v any, indent int) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			w.out = append(w.out, "{}\n"...)
			return
		}
		for i, key := range w.encoder.sortKeys(v) {
			if i > 0 {
				w.indent(indent)
			}
			if len(key) > longestKey {
				w.isUnknown = true
				return
			}
			w.writeText(key)
			w.out = append(w.out, ':')
			w.writeMember(v[key], indent)
		}
	case []any:
		if len(v) == 0 {
			w.out = append(w.out, "[]\n"...)
			return
		}
		for i, item := range v {
			if i > 0 {
				w.indent(indent)
			}
			w.out = append(w.out, '-')
			w.writeItem(item, indent)
		}
	}
}

// longestKey is how long a key may be for "key: value" in one line. The library writes longer ones otherwise.
const longestKey = 100

// writeMember writes the value of a key, after its colon.
func (w *yamlWriter) writeMember(v any, indent int) {
	isBlock := false
	switch v := v.(type) {
	case map[string]any:
		isBlock = len(v) > 0
	case []any:
		isBlock = len(v) > 0
	}
	if !isBlock {
		w.writeItem(v, indent)
		return
	}
	w.out = append(w.out, '\n')
	w.indent(indent + 2)
	w.writeBlock(v, indent+2)
}

// writeItem writes a value in the line that it is in: after the dash of a list, or a value that is no block.
func (w *yamlWriter) writeItem(v any, indent int) {
	w.out = append(w.out, ' ')
	switch v := v.(type) {
	case map[string]any, []any:
		w.writeBlock(v, indent+2)
		return
	case string:
		w.writeText(v)
	case bool:
		w.out = strconv.AppendBool(w.out, v)
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			w.isUnknown = true
			return
		}
		w.out = strconv.AppendInt(w.out, n, 10)
	default: // null
		w.isUnknown = true
	}
	w.out = append(w.out, '\n')
}

func (w *yamlWriter) indent(n int) {
	for range n {
		w.out = append(w.out, ' ')
	}
}

// writeText writes a text of one line.
func (w *yamlWriter) writeText(text string) {
	if isPlainWord(text) {
		w.out = append(w.out, text...)
		return
	}
	known, found := w.encoder.scalars.Load(text)
	if !found {
		encoded, err := yaml.Marshal(text)
		line, _ := bytes.CutSuffix(encoded, []byte("\n"))
		if err != nil || bytes.ContainsAny(line, "\r\n") || strings.ContainsAny(text, "\r\n\u0085\u2028\u2029") {
			w.isUnknown = true
			return
		}
		known = line
		w.encoder.scalars.Store(text, known)
	}
	w.out = append(w.out, known.([]byte)...)
}

// wordsWithMeaning are words that are no texts in YAML 1.1 or 1.2, in small letters.
var wordsWithMeaning = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// isPlainWord reports whether a text needs no quotes: a letter, and then letters, digits, and . _ / -.
func isPlainWord(text string) bool {
	for i := range len(text) {
		c := text[i]
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !isLetter && (i == 0 || !('0' <= c && c <= '9' || c == '.' || c == '_' || c == '/' || c == '-')) {
			return false
		}
	}
	return text != "" && (len(text) > 5 || !slices.Contains(wordsWithMeaning, strings.ToLower(text)))
}

// sortKeys returns the keys of a mapping in the order of the library, which compares numbers in names by their values:
// mc2 is before mc10.
func (e *encoder) sortKeys(m map[string]any) []string {
	keys := slices.Sorted(maps.Keys(m))
	if !slices.ContainsFunc(keys, func(key string) bool { return !isLetters(key) }) {
		return keys
	}
	set := strings.Join(keys, "\x00")
	if known, found := e.orders.Load(set); found {
		return known.([]string)
	}
	var ordered yaml.Node
	if err := ordered.Encode(m); err != nil {
		return keys // the library will refuse the document, too
	}
	for i := range keys {
		keys[i] = ordered.Content[2*i].Value
	}
	e.orders.Store(set, keys)
	return keys
}

// isLetters reports whether a text has letters only.
func isLetters(text string) bool {
	for i := range len(text) {
		if c := text[i] | 0x20; c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}
