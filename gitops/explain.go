package gitops

import (
	"fmt"
	"strings"
)

// Setting is one value on the way from the most general level to a region or cluster.
type Setting struct {
	At      Position `json:"at"`
	Value   any      `json:"value"`             // as encoding/json has it
	Deleted bool     `json:"deleted,omitempty"` // the level sets null, which deletes what it inherits
}

// Explanation is where the value of a key comes from.
type Explanation struct {
	Key         string    `json:"key"`
	Value       any       `json:"value"`
	Description string    `json:"description,omitempty"` // of the key, or of the nearest key above it
	Settings    []Setting `json:"settings"`              // the one that counts first, then what it replaced
}

// Explain returns where the value of a key comes from. A key is a path with points:
// values.global.maestro. For a mapping it explains each value in it. The first setting of
// a value that a level has deleted is that level. An error says which key the region or
// cluster has not.
func (r Region) Explain(key string) ([]Explanation, error) {
	return explain(r.settings, key, fmt.Sprintf("the region %s", r.Name))
}

// Explain is Region.Explain for a management cluster.
func (c Cluster) Explain(key string) ([]Explanation, error) {
	return explain(c.settings, key, fmt.Sprintf("the management cluster %s", c.ID()))
}

func explain(settings *node, key, whose string) ([]Explanation, error) {
	path := splitKey(settings, key)
	n := settings.get(path...)
	if n == nil {
		if deleted := settings.deletedSettings(path); len(deleted) > 0 {
			return []Explanation{{Key: key, Description: Describe(key), Settings: deleted}}, nil
		}
		for i := len(path) - 1; i > 0; i-- {
			if above := settings.get(path[:i]...); above != nil && above.kind == mapping {
				return nil, fmt.Errorf("%s sets no %s; %s has %s", whose, key, strings.Join(path[:i], "."),
					strings.Join(above.keys(), ", "))
			}
		}
		return nil, fmt.Errorf("%s sets no %s; it has %s", whose, key, strings.Join(settings.keys(), ", "))
	}
	var all []Explanation
	n.explain(key, &all)
	return all, nil
}

// deletedSettings returns the level that deleted a missing value, since it set a mapping around the value to null, and
// then the settings that it deleted. Without such a level there are none.
func (n *node) deletedSettings(path []string) []Setting {
	for i := len(path) - 1; i > 0; i-- {
		below := strings.Join(path[i:], ".")
		for s := n.get(path[:i]...); s != nil; s = s.replaced {
			if s.kind != deleted {
				continue
			}
			for lost := s.replaced; lost != nil; lost = lost.replaced {
				if value := lost.get(splitKey(lost, below)...); value != nil {
					return append([]Setting{{At: s.at, Deleted: true}}, value.settings()...)
				}
			}
		}
	}
	return nil
}

// settings returns the value and those that it replaced.
func (n *node) settings() (all []Setting) {
	for s := n; s != nil; s = s.replaced {
		all = append(all, Setting{At: s.at, Value: s.plain(), Deleted: s.kind == deleted})
	}
	return all
}

// splitKey returns the parts of a key. Keys of charts may have points themselves, so a key
// can be split in several ways. splitKey returns the split that exists in the settings, or
// else the split whose first parts exist.
func splitKey(n *node, key string) []string {
	if n == nil || n.kind != mapping || n.members[key] != nil {
		return []string{key}
	}
	var nearest []string
	for i := range len(key) {
		if key[i] != '.' || n.members[key[:i]] == nil {
			continue
		}
		path := append([]string{key[:i]}, splitKey(n.members[key[:i]], key[i+1:])...)
		if n.get(path...) != nil {
			return path
		}
		if nearest == nil {
			nearest = path
		}
	}
	if nearest == nil {
		return []string{key}
	}
	return nearest
}

func (n *node) explain(key string, all *[]Explanation) {
	if n.kind == mapping && len(n.members) > 0 {
		for _, k := range n.keys() {
			n.members[k].explain(join(key, k), all)
		}
		return
	}
	*all = append(*all, Explanation{Key: key, Value: n.plain(), Description: Describe(key), Settings: n.settings()})
}

// Describe returns the documentation of a key, or of the nearest key above it.
func Describe(key string) string {
	description := ""
	at := schemaRoot()
	for _, name := range strings.Split(key, ".") {
		next, ok := at.Properties[name]
		if !ok {
			break
		}
		if at = next; at.Description != "" {
			description = at.Description
		}
	}
	return description
}
