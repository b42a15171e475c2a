package gitops

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"atoll.dev/internal/strictyaml"
)

// shape is the permitted form of a value: the keys that a mapping may have, or the kind
// of a scalar.
type shape struct {
	kind    kind
	members map[string]*shape // of a mapping with given keys
	each    *shape            // of the members of a mapping with free keys, and of the items of a list
	free    bool              // everything is allowed: values of charts, variables of Terraform
}

// settingOf returns the key of Settings that a path in a file names: without the management cluster
// or the list of shards that has it.
func settingOf(path string) string {
	if shard, ok := strings.CutPrefix(path, "shards."); ok {
		return shard
	}
	if cluster, ok := strings.CutPrefix(path, "managementClusters."); ok {
		_, path, _ = strings.Cut(cluster, ".")
	}
	return path
}

// isInHelm reports whether a setting is a value of Helm, which may have ${ for its chart.
func isInHelm(setting string) bool { return strings.HasPrefix(setting, "values.") }

// isInArgo reports whether Argo CD reads a setting from Git, so that nobody resolves its references.
func isInArgo(setting string) bool {
	return setting == "aws.region" || slices.ContainsFunc([]string{"git.", "versions.", "dns."},
		func(group string) bool { return strings.HasPrefix(setting, group) })
}

// shapeOf returns the shape of a type by its json tags.
func shapeOf(t reflect.Type) *shape {
	switch t.Kind() {
	case reflect.Struct:
		s := &shape{kind: mapping, members: map[string]*shape{}}
		for f := range t.Fields() {
			if name := strings.Split(f.Tag.Get("json"), ",")[0]; f.IsExported() && name != "-" {
				s.members[name] = shapeOf(f.Type)
			}
		}
		return s
	case reflect.Map:
		return &shape{kind: mapping, each: shapeOf(t.Elem())}
	case reflect.Slice:
		return &shape{kind: list, each: shapeOf(t.Elem())}
	case reflect.String:
		return &shape{kind: text}
	case reflect.Int64:
		return &shape{kind: number}
	case reflect.Bool:
		return &shape{kind: truth}
	case reflect.Interface:
		return &shape{free: true}
	}
	panic("gitops: a setting of type " + t.String())
}

// withKeys returns the shape of Settings with the further keys of a level.
func withKeys(further reflect.Type) *shape {
	s := shapeOf(reflect.TypeFor[Settings]())
	for name, member := range shapeOf(further).members {
		s.members[name] = member
	}
	return s
}

// Shapes of the files of each level.
var (
	settingsShape    = shapeOf(reflect.TypeFor[Settings]())
	environmentShape = withKeys(reflect.TypeFor[environmentKeys]())
	regionShape      = withKeys(reflect.TypeFor[regionKeys]())
)

// check returns the mistakes in a file: keys that a level does not have, and values of
// another kind than theirs.
func (s *shape) check(n *node) error {
	var mistakes []error
	s.collect(n, "", &mistakes)
	return errors.Join(mistakes...)
}

func (s *shape) collect(n *node, path string, mistakes *[]error) {
	switch {
	case s.free:
		checkFree(n, path, mistakes)
	case n.kind == deleted:
	case n.kind != s.kind:
		*mistakes = append(*mistakes, n.at.errorf("%s is %s; it must be %s%s", path, n.kind, s.kind,
			quotesAdvice(n, s)))
	case s.kind == mapping:
		for _, key := range n.keys() {
			value := n.members[key]
			member := s.each
			if s.members != nil {
				member = s.members[key]
			}
			if member == nil {
				*mistakes = append(*mistakes, value.at.errorf("unknown key %s%s", join(path, key), s.advice(key)))
				continue
			}
			member.collect(value, join(path, key), mistakes)
		}
	case s.kind == list:
		for _, item := range n.items {
			if item.kind == deleted {
				*mistakes = append(*mistakes, item.at.errorf("%s has an item without a value", path))
				continue
			}
			s.each.collect(item, path, mistakes)
		}
	case n.kind == text:
		checkText(n, path, mistakes)
	case n.kind == number:
		if _, whole := n.value.(int64); !whole {
			*mistakes = append(*mistakes, n.at.errorf("%s is %v; it must be a whole number", path, n.value))
		}
	}
}

// checkFree checks the references in free-form data.
func checkFree(n *node, path string, mistakes *[]error) {
	switch n.kind {
	case mapping:
		for _, key := range n.keys() {
			checkFree(n.members[key], join(path, key), mistakes)
		}
	case list:
		for _, item := range n.items {
			checkFree(item, path, mistakes)
		}
	case text:
		checkText(n, path, mistakes)
	}
}

func checkText(n *node, path string, mistakes *[]error) {
	references, err := References(n.value.(string))
	setting := settingOf(path)
	switch {
	case isInHelm(setting) && len(references) > 0:
		*mistakes = append(*mistakes, n.at.errorf("%s has the reference %s; nothing resolves references in values of "+
			"Helm: let the chart read a Secret, or put it under terraform", path, references[0]))
	case isInHelm(setting): // ${ belongs to the chart
	case err != nil:
		*mistakes = append(*mistakes, n.at.errorf("%s: %w", path, err))
	case isInArgo(setting) && len(references) > 0:
		*mistakes = append(*mistakes, n.at.errorf("%s has the reference %s; Argo CD reads it from Git, and nothing "+
			"resolves it there", path, references[0]))
	case isInArgo(setting) && strings.Contains(n.value.(string), "{{"):
		*mistakes = append(*mistakes, n.at.errorf("%s contains {{; Argo CD would take it for a template", path))
	}
}

func quotesAdvice(n *node, s *shape) string {
	if s.kind == text && (n.kind == number || n.kind == truth) {
		return "; put it in quotes"
	}
	return ""
}

// advice names the known key that is most like an unknown one.
func (s *shape) advice(key string) string {
	known := make([]string, 0, len(s.members))
	for k := range s.members {
		known = append(known, k)
	}
	slices.Sort(known)
	if nearest := strictyaml.Nearest(key, known); nearest != "" {
		return "; the nearest known key is " + nearest
	}
	return "; known are " + strings.Join(known, ", ")
}
