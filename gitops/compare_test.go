package gitops

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func loadTree(t *testing.T, archive string) Fleet {
	t.Helper()
	f, err := Load(fsOf(t, archive), "config")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCompareShowsWhoInheritsAChange: a change of the defaults shows in each region and
// cluster that does not set the value itself.
func TestCompareShowsWhoInheritsAChange(t *testing.T) {
	tree := func(level, own string) string {
		return fmt.Sprintf(`
-- defaults.yaml --
git: {repository: r}
values: {global: {level: %s}}
-- p/environment.yaml --
sectors: [main]
-- p/regions/r1.yaml --
sector: main
managementClusters: {mc01: {values: {global: {level: own}}}, mc02: }
-- p/regions/r2.yaml --
sector: main
%s
`, level, own)
	}
	before := loadTree(t, tree("info", "managementClusters: {mc01: }"))
	after := loadTree(t, tree("debug", "managementClusters: {mc02: }"))
	var lines []string
	for _, c := range Compare(before, after) {
		line := fmt.Sprintf("%s %s/%s", c.Kind, c.Region, c.Cluster)
		for _, v := range c.Values {
			line += fmt.Sprintf(" %s %v->%v", v.Key, v.Before, v.After)
		}
		lines = append(lines, line)
	}
	want := []string{"changed r1/ values.global.level info->debug", "changed r1/mc02 values.global.level info->debug",
		"changed r2/ values.global.level info->debug", "removed r2/mc01", "added r2/mc02"}
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if same := Compare(after, after); len(same) > 0 {
		t.Errorf("a fleet differs from itself: %v", same)
	}
}

// TestValuesOfAPinnedClusterHaveNoEffect: the pin of the sector keeps values of Helm, and nothing else.
func TestValuesOfAPinnedClusterHaveNoEffect(t *testing.T) {
	tree := func(level, version, pin string) Fleet {
		return loadTree(t, fmt.Sprintf(`
-- defaults.yaml --
git: {repository: r}
values: {global: {level: %s}}
versions: {atoll: "%s"}
-- p/environment.yaml --
sectors: [main]
-- p/sectors/main.yaml --
git: {revision: %s}
-- p/regions/r1.yaml --
sector: main
managementClusters: {mc01: {git: {revision: null}}}
`, level, version, pin))
	}
	changes := Compare(tree("info", "1", "v1"), tree("debug", "2", "v2"))
	var lines []string
	for _, c := range changes {
		for _, v := range c.Values {
			lines = append(lines, fmt.Sprintf("%s%s %s %q", c.Region, c.Cluster, v.Key, v.Pinned))
		}
	}
	want := []string{`r1 git.revision ""`, `r1 values.global.level "v2"`, `r1 versions.atoll ""`,
		`r1mc01 values.global.level ""`, `r1mc01 versions.atoll ""`}
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// TestMergeLaws: merging is associative unless the level in the middle deletes, merging nothing
// changes nothing, and a value of the more specific level always counts. Where a level deletes a
// mapping, what a later level sets replaces it: {a: {b: 1}}, {a: null}, {a: {}} give {a: {}}, and
// {a: null}, {a: {}} alone give {a: {}}, which deletes nothing. Levels merge from the most general.
func TestMergeLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawMapping(t, 3), drawMapping(t, 3), drawMapping(t, 3)
		left, err1 := merge(mustMerge(a, b), c)
		right, err2 := merge(a, mustMerge(b, c))
		if !b.deletes() && err1 == nil && err2 == nil && !reflect.DeepEqual(left.plain(), right.plain()) {
			t.Fatalf("(a+b)+c is %s, a+(b+c) is %s", asText(left), asText(right))
		}
		empty := &node{kind: mapping, members: map[string]*node{}}
		if !reflect.DeepEqual(mustMerge(a, empty).plain(), a.plain()) {
			t.Fatalf("a+{} is %s, a is %s", asText(mustMerge(a, empty)), asText(a))
		}
		merged := mustMerge(a, b)
		for key, value := range b.members {
			if value.kind != mapping && !reflect.DeepEqual(merged.members[key].plain(), value.plain()) {
				t.Fatalf("%s of b does not count", key)
			}
		}
	})
}

// deletes reports whether a mapping has a null in it.
func (n *node) deletes() bool {
	for _, member := range n.members {
		if member.kind == deleted || member.deletes() {
			return true
		}
	}
	return false
}

func mustMerge(a, b *node) *node {
	n, _ := merge(a, b) // the result is complete also with mistakes
	return n
}

func asText(n *node) string {
	b, _ := json.Marshal(n.plain())
	return string(b)
}

func drawMapping(t *rapid.T, depth int) *node {
	n := &node{kind: mapping, members: map[string]*node{}}
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t,
		"keys") {
		n.members[key] = drawNode(t, depth-1)
	}
	return n
}

func drawNode(t *rapid.T, depth int) *node {
	switch k := rapid.IntRange(0, 4).Draw(t, "kind"); {
	case k == 0:
		return &node{kind: deleted}
	case k == 1:
		return &node{kind: list, items: []*node{{kind: number, value: rapid.Int64().Draw(t, "item")}}}
	case k == 2 || depth == 0:
		return &node{kind: text, value: rapid.StringMatching("[a-z]{0,3}").Draw(t, "text")}
	}
	return drawMapping(t, depth)
}
