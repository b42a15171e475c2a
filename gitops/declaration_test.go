package gitops

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// TestWhatIsRenderedDeclaresTheTree: for each region and cluster of the worked example, the rendered files declare what
// the tree declares, values of Helm included; and the tree knows the place of each value.
func TestWhatIsRenderedDeclaresTheTree(t *testing.T) {
	fleet, err := Load(os.DirFS("../examples/config"), "config")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range fleet.Regions() {
		dir := filepath.Join("..", "examples", "deploy", filepath.FromSlash(r.Dir()))
		rendered, err := ReadRegion(os.DirFS(dir), "deploy")
		if err != nil {
			t.Fatal(err)
		}
		tree := Declare(r)
		want := dataForType(r.Settings.Values, regionalCluster)
		if difference := cmp.Diff(want, tree.Values.root.plain()); difference != "" {
			t.Errorf("%s: the values are not those that are rendered: %s", r.Name, difference)
		}
		documents := func(d Declaration) (all []any) {
			all = append(all, d.Values.root.plain(), d.Versions, d.Services)
			for _, c := range d.ManagementClusters {
				all = append(all, c.Name, c.Settings, c.Values.root.plain())
			}
			return all
		}
		if difference := cmp.Diff(documents(tree), documents(rendered)); difference != "" {
			t.Errorf("%s: the tree and the rendered files declare different regions: %s", r.Name, difference)
		}
		if at := rendered.At("versions", "atoll"); at.File != "deploy/region.yaml" || at.Line < 2 {
			t.Errorf("%s: versions.atoll is at %s", r.Name, at)
		}
	}
	canary, err := fleet.Region("us-east-2")
	if err != nil {
		t.Fatal(err)
	}
	d := Declare(canary)
	for _, c := range []struct {
		got  Position
		want string
	}{
		{d.At("versions", "atoll"), "config/production/sectors/canary.yaml:3"},
		{d.Values.Value([]string{"logLevel"}).At, "config/production/sectors/canary.yaml:6"},
	} {
		if c.got.String() != c.want {
			t.Errorf("a value is at %s, want %s", c.got, c.want)
		}
	}
}

// TestAShardOfOneTypeDeclaresARegion: the seed's file has values of one type of clusters only, or none.
func TestAShardOfOneTypeDeclaresARegion(t *testing.T) {
	fleet, err := Load(fstest.MapFS{shardsFile: {Data: []byte(`git: {repository: https://git.example.com/p.git}
shards:
- {region: r1, environment: e, values: {management-cluster: {hypershift: {a: b}}}}
- {region: r2, environment: e}
`)}}, "config")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Render(fleet); err != nil {
		t.Error(err)
	}
	for i, want := range []int{1, 0} {
		d := Declare(fleet.Regions()[i])
		if got := d.ManagementClusters[0].Values.Leaves(); len(got) != want || len(d.Values.Leaves()) != 0 {
			t.Errorf("%s declares the values %v and %v", d.Region, d.Values.Leaves(), got)
		}
	}
}

// TestValuesOfATypeReplaceThoseOfAll: null in the values of a type does not delete what is for all, as in what is
// rendered.
func TestValuesOfATypeReplaceThoseOfAll(t *testing.T) {
	root, err := parse("f", []byte(`values:
  global: {a: 1, b: {c: 1, d: 2}, e: {f: 1}}
  regional-cluster: {a: null, b: {d: 3}, e: 4}
`))
	if err != nil {
		t.Fatal(err)
	}
	settings, err := decode(root)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := json.Marshal(dataForType(settings.Values, regionalCluster))
	if err != nil {
		t.Fatal(err)
	}
	declared, err := json.Marshal(helmValues(root, regionalCluster).root.plain())
	if err != nil || string(declared) != string(rendered) {
		t.Errorf("the tree declares %s, %v; rendered are %s", declared, err, rendered)
	}
	if none := helmValues(root, managementCluster).Leaves(); len(none) != 4 {
		t.Errorf("a management cluster has %v", none)
	}
	if none := (Document{}).Leaves(); none != nil {
		t.Errorf("a document without values has %v", none)
	}
}
