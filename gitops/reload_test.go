package gitops

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

// TestReloadReturnsWhatLoadDoes changes files of regions and compares both.
func TestReloadReturnsWhatLoadDoes(t *testing.T) {
	tree := mapFS{
		"defaults.yaml":            "git: {repository: https://example.com/p.git}\nversions: {atoll: \"1\"}\n",
		"a/environment.yaml":       "sectors: [canary, main]\n",
		"a/sectors/canary.yaml":    "versions: {atoll: \"2\"}\n",
		"a/regions/r1.yaml":        "sector: canary\naws: {accountId: \"100000000001\"}\nmanagementClusters: {mc01: }\n",
		"a/regions/r2.yaml":        "sector: main\naws: {accountId: \"100000000002\"}\n",
		"b/environment.yaml":       "sectors: [main]\n",
		"b/regions/r1.yaml":        "sector: main\naws: {accountId: \"100000000003\"}\n",
		"b/regions/unrelated.yaml": "sector: main\n",
	}
	before, err := Load(tree.files(), "config")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, file, text, mistake string }{
		{"nothing", "a/regions/r1.yaml", tree["a/regions/r1.yaml"], ""},
		{"a value", "a/regions/r1.yaml", "sector: canary\nversions: {atoll: \"3\"}\n", ""},
		{"another sector", "a/regions/r2.yaml", "sector: canary\n", ""},
		{"a new region", "a/regions/r0.yaml", "sector: main\nmanagementClusters: {mc02: }\n", ""},
		{"a removed region", "a/regions/r1.yaml", "", ""},
		{"an unknown key", "a/regions/r1.yaml", "sector: main\nversion: {}\n", "config/a/regions/r1.yaml:2: unknown key"},
		{"an account of another region", "a/regions/r2.yaml", "sector: main\naws: {accountId: \"100000000001\"}\n",
			"the account 100000000001 is of the region a/r1"},
		{"an account of another environment", "a/regions/r2.yaml", "sector: main\naws: {accountId: \"100000000003\"}\n",
			"the account 100000000003 is of the region"},
	} {
		edited := maps.Clone(tree)
		if edited[c.file] = c.text; c.text == "" {
			delete(edited, c.file)
		}
		want, wantErr := Load(edited.files(), "config")
		region := RegionName(strings.TrimSuffix(strings.TrimPrefix(c.file, "a/regions/"), ".yaml"))
		got, err := before.Reload(edited.files(), "config", "a", []RegionName{region})
		if (err == nil) != (wantErr == nil) || err != nil && (c.mistake == "" || !strings.Contains(err.Error(), c.mistake)) {
			t.Errorf("%s: the error is %v, of Load %v", c.name, err, wantErr)
			continue
		}
		if err == nil && (len(Compare(got, want)) > 0 || !reflect.DeepEqual(declarations(got), declarations(want))) {
			t.Errorf("%s: %v differ", c.name, Compare(got, want))
		}
	}
}

// declarations returns the declarations of all regions, in the order of the fleet.
func declarations(f Fleet) (all []Declaration) {
	for _, r := range f.Regions() {
		all = append(all, Declare(r))
	}
	return all
}
