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
	repository := Repository{Files: fstest.MapFS{}, Pinned: func(revision string, paths []string) (fs.FS, string, error) {
		asked = append(asked, paths...)
		if commits[revision] == nil {
			return nil, "not checked: nobody has it", nil
		}
		return commits[revision], "", nil
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
		{"v9", "", "the git.revision v9 is not checked: nobody has it"},
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
}

// TestAReadErrorOfAPinIsNoMistake has a commit that cannot be read beside one that can: a mistake in the second, and
// one beside the pins, have precedence. A commit that is checked although the remote does not answer has its note.
func TestAReadErrorOfAPinIsNoMistake(t *testing.T) {
	broken := errors.New("the disk is broken")
	mistake := fstest.MapFS{"deploy/charts/shared/a/Chart.yaml": {}} // no values are rendered
	note := "checked at the clone's commit 0123"
	for _, c := range []struct {
		schema string // of a chart beside the pins
		v2     fs.FS
		isRead bool
	}{{`{}`, fstest.MapFS{}, true}, {`{}`, mistake, false}, {`{"required": ["b"]}`, fstest.MapFS{}, false}} {
		repository := Repository{Files: fstest.MapFS{"deploy/charts/shared/a/values.schema.json": {Data: []byte(c.schema)}},
			Pinned: func(revision string, _ []string) (fs.FS, string, error) {
				if revision == "v1" {
					return nil, "", broken
				}
				return c.v2, note, nil
			}}
		f, err := Load(mapFS{"defaults.yaml": "git: {repository: r}\n", "p/environment.yaml": "sectors: [main]\n",
			"p/regions/r1.yaml": "sector: main\ngit: {revision: v1}\n",
			"p/regions/r2.yaml": "sector: main\ngit: {revision: v2}\n"}.files(), "config")
		if err != nil {
			t.Fatal(err)
		}
		unchecked, err := repository.CheckCharts(f)
		if err == nil || errors.Is(err, ErrPinUnreadable) != c.isRead || errors.Is(err, broken) != c.isRead {
			t.Errorf("%s: %v", c.schema, err)
		}
		if want := []string{"config/p/regions/r2.yaml:2: the git.revision v2 is " + note}; !cmp.Equal(unchecked, want) {
			t.Errorf("unchecked is %q, want %q", unchecked, want)
		}
	}
}
