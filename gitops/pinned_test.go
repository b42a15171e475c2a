package gitops

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestAPinnedClusterIsCheckedByTheChartsAndValuesOfItsRevision has three revisions: in the first the charts take the
// values, in the second they do not, and the third is not there. Each level may pin.
func TestAPinnedClusterIsCheckedByTheChartsAndValuesOfItsRevision(t *testing.T) {
	const chart, of = "deploy/charts/regional-cluster/a/", "deploy/p/r1/regional-cluster/values.yaml"
	commit := func(schema, values string) fstest.MapFS {
		return fstest.MapFS{chart + "values.schema.json": {Data: []byte(schema)}, of: {Data: []byte(values)},
			chart + "values.yaml": {Data: []byte("replicas: 2\n")}}
	}
	const integer = `{"properties": {"replicas": {"type": "integer", "minimum": 1}}}`
	const sharded = `{"properties": {"replicas": {"type": "integer"}, "global": {"required": ["shard"]}}}`
	commits := map[string]fstest.MapFS{
		"v1":         commit(integer, "replicas: 3\n"),
		"v2":         commit(integer, "replicas: 0\n"),
		"v3":         commit(sharded, "replicas: 3\n"),
		"unrendered": {chart + "values.yaml": {}},
		"no-charts":  {},
	}
	var asked []string
	repository := Repository{Files: fstest.MapFS{}, Pinned: func(revision string, paths []string) (fs.FS, error) {
		asked = append(asked, paths...)
		if commits[revision] == nil {
			return nil, fs.ErrNotExist
		}
		return commits[revision], nil
	}}
	tree := mapFS{"defaults.yaml": "git: {repository: r}\n", "p/environment.yaml": "sectors: [main]\n",
		"p/regions/r1.yaml": "sector: main\n"}
	for _, c := range []struct{ revision, mistake, unchecked string }{
		{"v1", "", ""},
		{"v2", "in the git.revision v2 the chart deploy/charts/regional-cluster/a refuses the value replicas: minimum: " +
			"got 0, want 1, with the values of " + of, ""},
		{"v3", "in the git.revision v3 the chart deploy/charts/regional-cluster/a refuses the value global: missing " +
			"property 'shard', with the values of " + of, ""},
		{"unrendered", "the git.revision unrendered has no " + of + ", without which Argo CD installs no chart in the " +
			"cluster regional-r1: name a commit in which it is rendered", ""},
		{"no-charts", "", ""},
		{"v9", "", "the git.revision v9 is not in this clone, so its charts are not checked; push it, or run git fetch"},
	} {
		for _, level := range []string{"defaults.yaml", "p/environment.yaml", "p/sectors/main.yaml", "p/regions/r1.yaml"} {
			pinned := mapFS{}
			for name, text := range tree {
				pinned[name] = text
			}
			line := "1"
			if text := tree[level]; level == "defaults.yaml" {
				pinned[level] = "git: {repository: r, revision: " + c.revision + "}\n"
			} else {
				line = []string{"1", "2"}[strings.Count(text, "\n")]
				pinned[level] = text + "git: {revision: " + c.revision + "}\n"
			}
			f, err := Load(pinned.files(), "config")
			if err != nil {
				t.Fatal(err)
			}
			unchecked, err := repository.CheckCharts(f)
			at := "config/" + level + ":" + line + ": "
			got, want := "", ""
			if c.mistake != "" {
				want = at + c.mistake
			}
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: the mistake is %q, want %q", level, got, want)
			}
			if got, want = strings.Join(unchecked, "\n"), ""; c.unchecked != "" {
				want = at + c.unchecked
			}
			if got != want {
				t.Errorf("%s: unchecked is %q, want %q", level, got, want)
			}
		}
	}
	want := []string{"deploy/charts/regional-cluster", "deploy/charts/shared", of}
	if diff := cmp.Diff(want, asked[:len(want)]); diff != "" {
		t.Errorf("the paths in the revision (-want +got):\n%s", diff)
	}
	broken := errors.New("the disk is broken")
	repository.Pinned = func(string, []string) (fs.FS, error) { return nil, broken }
	tree["p/sectors/main.yaml"] = "git: {revision: v1}\n"
	f, err := Load(tree.files(), "config")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repository.CheckCharts(f); !errors.Is(err, broken) {
		t.Errorf("a repository that cannot be read: %v", err)
	}
}
