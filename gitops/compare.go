package gitops

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Change is the difference between two fleets for one region or one management cluster.
type Change struct {
	Environment EnvironmentName `json:"environment"`
	Region      RegionName      `json:"region"`
	Cluster     ClusterName     `json:"cluster,omitempty"` // empty for the region itself
	Kind        ChangeKind      `json:"kind"`
	Values      []ValueChange   `json:"values,omitempty"` // of a changed one, by key
}

// ChangeKind is the kind of change of a region or cluster.
type ChangeKind string

// Kinds of changes.
const (
	Added   ChangeKind = "added"
	Removed ChangeKind = "removed"
	Changed ChangeKind = "changed"
)

// ValueChange is a value that differs. A key that one side does not have has no value
// there.
type ValueChange struct {
	Key    string `json:"key"`
	Before any    `json:"before,omitempty"`
	After  any    `json:"after,omitempty"`
	// Pinned is the git.revision afterwards, of a value of Helm: the cluster has the values of that commit, so the change
	// has no effect there before another git.revision.
	Pinned string `json:"pinned,omitempty"`
}

// Compare returns the differences between two fleets, by environment, region and cluster.
// A change of a level shows in every region and cluster that inherits it.
func Compare(before, after Fleet) []Change {
	old, now := before.subjects(), after.subjects()
	var changes []Change
	for _, key := range sortedKeys(old, now) {
		o, hadIt := old[key]
		n, hasIt := now[key]
		change := Change{Environment: key.environment, Region: key.region, Cluster: key.cluster}
		switch {
		case !hadIt:
			change.Kind = Added
		case !hasIt:
			change.Kind = Removed
		default:
			change.Kind, change.Values = Changed, compareValues(o, n)
			if len(change.Values) == 0 {
				continue
			}
		}
		changes = append(changes, change)
	}
	return changes
}

// subject identifies a region, or one of its management clusters.
type subject struct {
	environment EnvironmentName
	region      RegionName
	cluster     ClusterName
}

func (s subject) compare(t subject) int {
	return slices.Compare([]string{string(s.environment), string(s.region), string(s.cluster)},
		[]string{string(t.environment), string(t.region), string(t.cluster)})
}

// values are the values of a region or cluster that are not mappings, by their paths: keys
// with separator between them. Keys may have points themselves, so {a.b: 1} and {a: {b: 1}}
// have two paths and are shown alike.
type values map[string]any

// separator sorts before every character of a key.
const separator = "\x00"

func (f Fleet) subjects() map[subject]values {
	all := map[subject]values{}
	for _, r := range f.Regions() {
		v := values{"sector": string(r.Sector)}
		v.add("", r.settings.plain())
		all[subject{r.Environment, r.Name, ""}] = v
		for _, c := range r.Clusters {
			v := values{}
			v.add("", c.settings.plain())
			all[subject{r.Environment, r.Name, c.Name}] = v
		}
	}
	return all
}

func (v values) add(key string, value any) {
	if m, ok := value.(map[string]any); ok && (len(m) > 0 || key == "") {
		for k, member := range m {
			path := k
			if key != "" {
				path = key + separator + k
			}
			v.add(path, member)
		}
		return
	}
	v[key] = value
}

func compareValues(before, after values) (changed []ValueChange) {
	keys := slices.Collect(maps.Keys(before))
	for key := range after {
		if _, both := before[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if !reflect.DeepEqual(before[key], after[key]) {
			change := ValueChange{Key: strings.ReplaceAll(key, separator, "."), Before: before[key], After: after[key]}
			if strings.HasPrefix(key, "values"+separator) {
				change.Pinned, _ = after["git"+separator+"revision"].(string)
			}
			changed = append(changed, change)
		}
	}
	return changed
}

func sortedKeys(a, b map[subject]values) []subject {
	keys := slices.Collect(maps.Keys(a))
	for key := range b {
		if _, both := a[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, subject.compare)
	return keys
}
