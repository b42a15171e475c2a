package agent

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/itchyny/gojq"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"
	workv1 "open-cluster-management.io/api/work/v1"
)

// ignorePlan is what a server-side apply with ignoreFields leaves alone.
//
// As in OCM's agent, the hash of the manifest without the fields that are
// ignored OnSpokePresent is kept in an annotation, and an object that bears it
// is not written: so nobody's change is undone until the manifest changes.
// When it does, what is ignored OnSpokeChange is written again, and what is
// ignored OnSpokePresent keeps the value that the object has.
type ignorePlan struct {
	hash    string
	present []fieldPath // in the manifest, ignored OnSpokePresent
}

// fieldPath leads to a field: names of maps and indices of lists, ending in a
// name.
type fieldPath []any

// planIgnore works out what the options mean for a manifest.
func planIgnore(manifest []byte, fields []workv1.IgnoreField) (*ignorePlan, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(manifest); err != nil {
		return nil, err
	}
	obj.SetUID("")
	dropNullTimes(obj.Object)
	p := &ignorePlan{}
	for _, f := range fields {
		paths, err := findFields(obj.Object, f)
		if err != nil {
			return nil, err
		}
		if f.Condition != workv1.IgnoreFieldsConditionOnSpokeChange {
			p.present = append(p.present, paths...)
		}
	}
	for _, path := range p.present {
		remove(obj.Object, path)
	}
	// OCM's hash: of Go's print of the object, which sorts maps.
	sum := md5.Sum([]byte(fmt.Sprintf("%v", obj)))
	p.hash = hex.EncodeToString(sum[:])
	return p, nil
}

// leave makes the ignored fields what they are in the object that is there.
// Merely left out, a field that only we had set would be taken away.
func (p *ignorePlan) leave(manifest, live map[string]any) {
	for _, path := range p.present {
		in, _ := descend(manifest, manifest, path[:len(path)-1])
		there, _ := descend(live, manifest, path[:len(path)-1])
		key, _ := path[len(path)-1].(string)
		if _, ok := in[key]; !ok {
			continue
		}
		if value, ok := there[key]; ok {
			in[key] = runtime.DeepCopyJSONValue(value)
		} else {
			delete(in, key)
		}
	}
}

func remove(obj map[string]any, path fieldPath) {
	if in, ok := descend(obj, obj, path[:len(path)-1]); ok {
		key, _ := path[len(path)-1].(string)
		delete(in, key)
	}
}

// descend follows a path of the manifest in obj, which may be another object:
// an entry of a list is the one of the same name there, or else the one at the
// same place.
func descend(obj, manifest any, path fieldPath) (map[string]any, bool) {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := obj.(map[string]any)
			o, _ := manifest.(map[string]any)
			obj, manifest = m[step], o[step]
		case int:
			list, _ := obj.([]any)
			o, _ := manifest.([]any)
			var wanted any
			if step < len(o) {
				wanted = o[step]
			}
			obj, manifest = entryLike(list, wanted, step), wanted
		}
	}
	m, ok := obj.(map[string]any)
	return m, ok
}

func entryLike(list []any, wanted any, place int) any {
	if m, _ := wanted.(map[string]any); m["name"] != nil {
		for _, entry := range list {
			if e, _ := entry.(map[string]any); e["name"] == m["name"] {
				return entry
			}
		}
		return nil
	}
	if place >= len(list) {
		return nil
	}
	return list[place]
}

// findFields lists the fields of the object that an option names.
func findFields(obj map[string]any, f workv1.IgnoreField) ([]fieldPath, error) {
	var all []fieldPath
	for _, find := range []struct {
		kind  string
		texts []string
		paths func(map[string]any, string) ([]fieldPath, error)
	}{{"JSONPath", f.JSONPaths, byJSONPath}, {"JSON pointer", f.JSONPointers, byPointer}, {"jq expression", f.JQPathExpressions, byJQ}} {
		for _, text := range find.texts {
			paths, err := find.paths(obj, text)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", find.kind, text, err)
			}
			all = append(all, paths...)
		}
	}
	return all, nil
}

var errListEntry = errors.New("it names an entry of a list, only fields can be ignored")

// byJSONPath finds the maps at all of the path but its last name, as OCM does.
func byJSONPath(obj map[string]any, text string) ([]fieldPath, error) {
	parent, key, err := splitJSONPath(text)
	if err != nil {
		return nil, err
	}
	finder := jsonpath.New("ignoreFields").AllowMissingKeys(true)
	if err := finder.Parse("{" + parent + "}"); err != nil {
		return nil, err
	}
	results, err := finder.FindResults(obj)
	if err != nil {
		return nil, err
	}
	places := map[uintptr]fieldPath{}
	locate(obj, nil, places)
	var paths []fieldPath
	for _, result := range results {
		for _, r := range result {
			if m, ok := r.Interface().(map[string]any); ok {
				if _, there := m[key]; there {
					paths = append(paths, append(append(fieldPath(nil), places[reflect.ValueOf(m).Pointer()]...), key))
				}
			}
		}
	}
	return paths, nil
}

// locate notes where each map of the object is.
func locate(v any, at fieldPath, places map[uintptr]fieldPath) {
	step := func(s any) fieldPath { return append(at[:len(at):len(at)], s) }
	switch v := v.(type) {
	case map[string]any:
		places[reflect.ValueOf(v).Pointer()] = at
		for name, x := range v {
			locate(x, step(name), places)
		}
	case []any:
		for i, x := range v {
			locate(x, step(i), places)
		}
	}
}

// splitJSONPath cuts the last name off: .a.b[0].c, or .a['b.c'].
func splitJSONPath(text string) (parent, key string, err error) {
	if body, ok := strings.CutSuffix(text, "]"); ok {
		at := strings.LastIndex(body, "[")
		if at < 0 {
			return "", "", errors.New("unmatched ]")
		}
		key = strings.Trim(body[at+1:], `'"`)
		if key == body[at+1:] {
			return "", "", errListEntry
		}
		return text[:at], key, nil
	}
	at := strings.LastIndex(text, ".")
	if at < 0 {
		return "", "", errors.New("it does not begin with a dot")
	}
	parent, key = text[:at], text[at+1:]
	if key == "" || key == "*" {
		return "", "", errors.New("it does not end in a name")
	}
	if parent == "" || parent == "$" {
		parent = "@"
	}
	return parent, key, nil
}

// byPointer follows an RFC 6901 pointer.
func byPointer(obj map[string]any, text string) ([]fieldPath, error) {
	tokens := strings.Split(text, "/")
	if tokens[0] != "" || len(tokens) < 2 {
		return nil, errors.New("it does not begin with /")
	}
	var path fieldPath
	var at any = obj
	for i, token := range tokens[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case map[string]any:
			next, there := v[token]
			if !there {
				return nil, nil
			}
			at, path = next, append(path, token)
		case []any:
			n, err := strconv.Atoi(token)
			if err != nil {
				return nil, fmt.Errorf("%q is no index of a list", token)
			}
			if n < 0 || n >= len(v) {
				return nil, nil
			}
			if i == len(tokens)-2 {
				return nil, errListEntry
			}
			at, path = v[n], append(path, n)
		default:
			return nil, nil
		}
	}
	return []fieldPath{path}, nil
}

// An expression is another's program: it gets this long, and finds this much.
const (
	jqTimeout = 200 * time.Millisecond
	jqPaths   = 1000
)

// byJQ evaluates a jq path expression.
func byJQ(obj map[string]any, text string) ([]fieldPath, error) {
	if _, err := gojq.Parse(text); err != nil {
		return nil, err
	}
	query, err := gojq.Parse("path(" + text + "\n)") // a comment may end the text
	if err != nil {
		return nil, err
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	var input any // of the plain types that jq knows
	if err := json.Unmarshal(raw, &input); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), jqTimeout)
	defer cancel()
	var paths []fieldPath
	for results := code.RunWithContext(ctx, input); ; {
		v, ok := results.Next()
		if !ok {
			return paths, nil
		}
		if err, bad := v.(error); bad {
			return nil, err
		}
		steps, _ := v.([]any)
		path, there, err := checkedPath(obj, steps)
		if err != nil {
			return nil, err
		}
		if there {
			paths = append(paths, path)
		}
		if len(paths) > jqPaths {
			return nil, fmt.Errorf("it finds more than %d fields", jqPaths)
		}
	}
}

// checkedPath turns a path of jq's into one of ours, if the object has it.
func checkedPath(obj any, steps []any) (path fieldPath, there bool, err error) {
	if len(steps) == 0 {
		return nil, false, errors.New("it names the whole object")
	}
	for i, step := range steps {
		switch s := step.(type) {
		case string:
			m, _ := obj.(map[string]any)
			next, ok := m[s]
			if !ok {
				return nil, false, nil
			}
			obj = next
		case int:
			list, _ := obj.([]any)
			if i == len(steps)-1 {
				return nil, false, errListEntry
			}
			if s < 0 {
				s += len(list)
			}
			if s < 0 || s >= len(list) {
				return nil, false, nil
			}
			obj, step = list[s], s
		default:
			return nil, false, errors.New("it names a part of a list, only fields can be ignored")
		}
		path = append(path, step)
	}
	return path, true, nil
}
