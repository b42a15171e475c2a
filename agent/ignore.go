package agent

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"
	workv1 "open-cluster-management.io/api/work/v1"
)

// ignorePlan holds the fields that a server-side apply with ignoreFields does not write.
//
// As in OCM's agent, an annotation holds the hash of the manifest without the fields
// that are ignored OnSpokePresent. The agent does not write an object with the same
// hash, so changes by others stay until the manifest changes. Then the agent writes the
// fields that are ignored OnSpokeChange again. A field that is ignored OnSpokePresent
// keeps the value of the object; an ignored entry of a list is left out of the apply.
type ignorePlan struct {
	hash string
	// present holds the paths that are ignored OnSpokePresent, in the order of their removal
	// from the manifest: a path is valid once those before it are removed.
	present []fieldPath
}

// fieldPath leads to a field or to an entry of a list: names of maps and indices
// of lists.
type fieldPath []any

// planIgnore returns the plan of the options for a manifest. As in OCM's agent each path,
// pointer and expression is evaluated on the manifest without the fields of those before
// it.
func planIgnore(manifest []byte, fields []workv1.IgnoreField) (*ignorePlan, error) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(manifest); err != nil {
		return nil, err
	}
	obj.SetUID("")
	dropNullTimes(obj.Object)
	p := &ignorePlan{}
	for _, f := range fields {
		if f.Condition == workv1.IgnoreFieldsConditionOnSpokeChange {
			continue
		}
		paths, err := removeFields(obj.Object, f)
		if err != nil {
			return nil, err
		}
		p.present = append(p.present, paths...)
	}
	// OCM hashes Go's print of the object, which sorts maps.
	sum := md5.Sum([]byte(fmt.Sprintf("%v", obj)))
	p.hash = hex.EncodeToString(sum[:])
	return p, nil
}

// keepIgnored gives the ignored fields of the manifest the values of the live object,
// and removes the ignored entries of lists. If the manifest lacked the fields, the
// server-side apply would remove each field whose only owner is the agent.
func (p *ignorePlan) keepIgnored(manifest, live map[string]any) {
	for _, path := range p.present {
		key, isField := path[len(path)-1].(string)
		if !isField {
			withoutPath(manifest, path)
			continue
		}
		in, _ := descend(manifest, manifest, path[:len(path)-1])
		there, _ := descend(live, manifest, path[:len(path)-1])
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

// withoutPath returns v without the field or entry at the path. It changes maps in place;
// a path that does not exist changes nothing.
func withoutPath(v any, path fieldPath) any {
	last := len(path) == 1
	switch step := path[0].(type) {
	case string:
		m, _ := v.(map[string]any)
		child, there := m[step]
		switch {
		case !there:
		case last:
			delete(m, step)
		default:
			m[step] = withoutPath(child, path[1:])
		}
	case int:
		list, _ := v.([]any)
		switch {
		case step >= len(list):
		case last:
			return slices.Delete(slices.Clone(list), step, step+1)
		default:
			list[step] = withoutPath(list[step], path[1:])
		}
	}
	return v
}

// compare orders paths: by name, by index, and a path before those below it.
func (p fieldPath) compare(q fieldPath) int {
	for i := range min(len(p), len(q)) {
		a, aField := p[i].(string)
		b, bField := q[i].(string)
		c := strings.Compare(a, b)
		if !aField && !bField {
			c = p[i].(int) - q[i].(int)
		}
		if c != 0 {
			return c
		}
	}
	return len(p) - len(q)
}

// descend follows a path of the manifest in obj, which may be another object: an entry
// of a list corresponds to the entry with the same name in obj, or else to the one at the
// same index.
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
			obj, manifest = matchingEntry(list, wanted, step), wanted
		}
	}
	m, ok := obj.(map[string]any)
	return m, ok
}

func matchingEntry(list []any, wanted any, place int) any {
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

// removeFields removes the fields of an option from the object, and returns their paths in
// the order of removal.
func removeFields(obj map[string]any, f workv1.IgnoreField) ([]fieldPath, error) {
	var all []fieldPath
	for _, find := range []struct {
		kind  string
		texts []string
		paths func(map[string]any, string) ([]fieldPath, error)
	}{{"JSONPath", f.JSONPaths, byJSONPath}, {"JSON pointer", f.JSONPointers, byPointer},
		{"jq expression", f.JQPathExpressions, byJQ}} {
		for _, text := range find.texts {
			paths, err := find.paths(obj, text)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", find.kind, text, err)
			}
			slices.SortFunc(paths, fieldPath.compare)
			paths = slices.CompactFunc(paths, func(a, b fieldPath) bool { return a.compare(b) == 0 })
			slices.Reverse(paths) // so that a removal does not change the index of a later one
			for _, path := range paths {
				withoutPath(obj, path)
			}
			all = append(all, paths...)
		}
	}
	return all, nil
}

// byJSONPath finds the fields at a JSONPath: the maps at the path without its last name,
// as OCM does. A path that cannot be parsed, or that ends in an entry of a list, finds
// nothing and is no error: OCM's agent logs the first and ignores the second.
func byJSONPath(obj map[string]any, text string) ([]fieldPath, error) {
	parent, key, ok := splitJSONPath(text)
	if !ok {
		return nil, nil
	}
	finder := jsonpath.New("ignoreFields").AllowMissingKeys(true)
	if err := finder.Parse("{" + parent + "}"); err != nil {
		return nil, nil
	}
	results, err := finder.FindResults(obj)
	if err != nil {
		return nil, nil
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

// locate records the path of each map of the object.
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

// splitJSONPath splits the last name off: .a.b[0].c, or .a['b.c']. ok reports whether the
// path ends in a name.
func splitJSONPath(text string) (parent, key string, ok bool) {
	if body, bracket := strings.CutSuffix(text, "]"); bracket {
		at := strings.LastIndex(body, "[")
		if at < 0 {
			return "", "", false
		}
		key = strings.Trim(body[at+1:], `'"`)
		return text[:at], key, key != body[at+1:]
	}
	at := strings.LastIndex(text, ".")
	if at < 0 {
		return "", "", false
	}
	parent, key = text[:at], text[at+1:]
	if parent == "" || parent == "$" {
		parent = "@"
	}
	return parent, key, key != "" && key != "*"
}

// byPointer finds the field at an RFC 6901 pointer.
func byPointer(obj map[string]any, text string) ([]fieldPath, error) {
	tokens := strings.Split(text, "/")
	if tokens[0] != "" || len(tokens) < 2 {
		return nil, errors.New("it does not begin with /")
	}
	var path fieldPath
	var at any = obj
	for _, token := range tokens[1:] {
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
			at, path = v[n], append(path, n)
		default:
			return nil, nil
		}
	}
	return []fieldPath{path}, nil
}
