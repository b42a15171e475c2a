// Package strictyaml reads configuration files: one YAML document into a struct, where unknown keys, keys that come
// twice and values of another type are errors that name the file and the line. Set parses the text of an environment
// variable or a flag that overrides a value of the struct.
//
// Decode and DecodeAll are for files whose values need no line after they are decoded. ParseDocument and Walker are
// below them, for decoders that need the line of each value: the adapter's task files, which have expressions, the
// rules of gRPC, the configuration of all regions in Git, and the file of a broker.
//
// It imports nothing of Atoll.
package strictyaml

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Options are optional parameters of Decode.
type Options struct {
	// Hints has keys of older versions, each with the key to write instead.
	Hints map[string]string
}

// Decode decodes the only document of a file into a struct. An empty file changes nothing and is no error. The error
// joins all mistakes, each with FILE:LINE; file may be "" and is then left out. For an unknown key it has the hint, or
// the known key that is most like it.
func Decode(file string, data []byte, into any, o Options) (err error) {
	d := decoder{file: file, hints: o.Hints, keys: map[string][]string{}, yamlForms: map[string]string{}}
	defer func() { // the library panics on some documents
		if r := recover(); r != nil {
			err = d.explain(fmt.Sprintf("this is not YAML: %v", r))
		}
	}()
	root, err := ParseDocument(file, data)
	if err != nil || root == nil {
		return err
	}
	reader := yaml.NewDecoder(bytes.NewReader(data))
	reader.KnownFields(true)
	if err = reader.Decode(into); err == nil {
		return nil
	}
	return d.mistakes(reflect.TypeOf(into), err)
}

// DecodeAll decodes each document of a file that has a value. Otherwise it is as Decode.
func DecodeAll[T any](file string, data []byte, o Options) (documents []T, err error) {
	d := decoder{file: file, hints: o.Hints, keys: map[string][]string{}, yamlForms: map[string]string{}}
	defer func() { // the library panics on some documents
		if r := recover(); r != nil {
			documents, err = nil, d.explain(fmt.Sprintf("this is not YAML: %v", r))
		}
	}()
	nodes, reader := yaml.NewDecoder(bytes.NewReader(data)), yaml.NewDecoder(bytes.NewReader(data))
	reader.KnownFields(true)
	var all []error
	for {
		var root yaml.Node
		if err := nodes.Decode(&root); errors.Is(err, io.EOF) {
			return documents, errors.Join(all...)
		} else if err != nil { // the rest of the file cannot be read
			return nil, errors.Join(append(all, newUnreadable(file, err))...)
		}
		var document T
		if err := reader.Decode(&document); err != nil {
			all = append(all, d.mistakes(reflect.TypeFor[T](), err))
		}
		if len(root.Content) == 1 && !IsNull(root.Content[0]) {
			documents = append(documents, document)
		}
	}
}

// Object is a JSON object that is written as YAML: its keys are text, and so are its dates.
type Object map[string]any

// UnmarshalYAML decodes the object.
func (o *Object) UnmarshalYAML(n *yaml.Node) error {
	tagAsText(n)
	if err := n.Decode((*map[string]any)(o)); err != nil {
		return err
	}
	if _, err := json.Marshal(*o); err != nil { // JSON has neither .nan nor .inf
		return fmt.Errorf("line %d: this cannot be JSON: %w", n.Line, err)
	}
	return nil
}

// tagAsText changes the tags of keys and dates to that of text, here and below. It does not follow aliases.
func tagAsText(n *yaml.Node) {
	if n.Tag == "!!timestamp" {
		n.Tag = "!!str"
	}
	for i, c := range n.Content {
		isKey := n.Kind == yaml.MappingNode && i%2 == 0
		if isKey && c.Kind == yaml.ScalarNode && c.Tag != "!!merge" {
			c.Tag = "!!str"
		}
		tagAsText(c)
	}
}

type decoder struct {
	file      string
	hints     map[string]string
	keys      map[string][]string // of structs, by the type's name, as the library's errors have it
	yamlForms map[string]string   // the YAML form of a type's values, by the type's name
}

var (
	lineForm    = regexp.MustCompile(`^(?:yaml: )?line (\d+): (?s:(.*))$`)
	unknownForm = regexp.MustCompile(`^field (\S+) not found in type (.*)$`)
	typeForm    = regexp.MustCompile("^cannot unmarshal (?:!!\\w+ )?(`[^`]*`|!!\\w+) into (.*)$")
	nodeNames   = strings.NewReplacer("!!seq", "a list", "!!map", "a mapping", "!!null", "null")
)

// mistakes returns the mistakes that the library has found in a value for a type.
func (d *decoder) mistakes(t reflect.Type, err error) error {
	d.collect(t)
	d.yamlForms["map[string]interface {}"] = "a mapping" // of an Object
	texts := []string{err.Error()}
	if e, ok := errors.AsType[*yaml.TypeError](err); ok {
		texts = e.Errors
	}
	all := make([]error, len(texts))
	for i, text := range texts {
		all[i] = d.explain(text)
	}
	return errors.Join(all...)
}

// explain returns the mistake for an error of the library.
func (d *decoder) explain(text string) error {
	mistake := newMistake(d.file, text)
	if m := unknownForm.FindStringSubmatch(mistake.Text); m != nil {
		mistake.Text = "unknown key " + m[1] + d.suggestion(m[1], d.keys[m[2]])
	} else if m := typeForm.FindStringSubmatch(mistake.Text); m != nil {
		form := d.yamlForms[m[2]]
		if form == "" {
			form = "a value of this key"
		}
		mistake.Text = fmt.Sprintf("%s is not %s", nodeNames.Replace(m[1]), form)
	}
	return mistake
}

// suggestion returns the end of the error about an unknown key: the hint, or the nearest known key.
func (d *decoder) suggestion(key string, known []string) string {
	if hint := d.hints[key]; hint != "" {
		return "; " + hint
	}
	if nearest := Nearest(key, known); nearest != "" {
		return "; the nearest known key is " + nearest
	}
	return ""
}

// Nearest returns the known key that is most like an unknown one, or "" when none is like it.
func Nearest(key string, known []string) string {
	nearest, least := "", max(1, len(key)/3)+1
	for _, k := range known {
		if n := distance(key, k); n < least {
			nearest, least = k, n
		}
	}
	return nearest
}

// collect adds the keys and the YAML forms of a type and of the types within it.
func (d *decoder) collect(t reflect.Type) {
	d.yamlForms[t.String()] = formOf(t)
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		d.collect(t.Elem())
	case reflect.Struct:
		if _, seen := d.keys[t.String()]; seen {
			return
		}
		d.keys[t.String()] = nil
		d.keys[t.String()] = d.keysOf(t)
	}
}

// formOf returns the YAML form of a type's values.
func formOf(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a duration such as 5s"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return formOf(t.Elem())
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.String {
			return "a list of strings"
		}
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Interface:
		return "a value"
	}
	return "a number"
}

// keysOf returns the keys of a struct, and collects the types of its fields.
func (d *decoder) keysOf(t reflect.Type) (keys []string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case strings.Contains(options, "inline"):
			keys = append(keys, d.keysOf(f.Type)...)
		case name == "":
			keys = append(keys, strings.ToLower(f.Name))
			d.collect(f.Type)
		default:
			keys = append(keys, name)
			d.collect(f.Type)
		}
	}
	return keys
}

// distance returns how many bytes must be inserted, deleted or replaced, or neighbours exchanged, to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replaced := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// Set parses a text as the type to which p points, and stores the value there: a string, number, truth value,
// duration, list of strings separated by commas, pointer to a number or truth value, or an encoding.TextUnmarshaler.
// Another type panics. Errors show the text.
func Set(p any, text string) (err error) {
	switch p := p.(type) {
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *string:
		*p = text
	case *int:
		if *p, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
	case *bool:
		if *p, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case **int:
		*p = new(int)
		return Set(*p, text)
	case **bool:
		*p = new(bool)
		return Set(*p, text)
	case *time.Duration:
		if *p, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%q is not a duration such as 5s", text)
		}
	case *[]string:
		*p = strings.Split(text, ",")
	default:
		return setKind(reflect.ValueOf(p).Elem(), text)
	}
	return nil
}

// setKind stores a text in a number with a fraction, or in a value of a named type.
func setKind(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		var b bool
		if err := Set(&b, text); err != nil {
			return err
		}
		v.SetBool(b)
	case reflect.Int:
		var i int
		if err := Set(&i, text); err != nil {
			return err
		}
		v.SetInt(int64(i))
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		v.SetFloat(f)
	default:
		panic(fmt.Sprintf("strictyaml: a setting of type %s", v.Type()))
	}
	return nil
}
