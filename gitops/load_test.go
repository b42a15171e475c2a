package gitops

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestLoadRefusesBadInput runs testdata/bad: each file is an archive of a tree whose
// comment has the lines of the error.
func TestLoadRefusesBadInput(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no archives", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tree, err := txtar.FS(archive)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Load(tree, "config")
			if err == nil {
				t.Fatal("the tree was loaded")
			}
			if len(f.Environments) > 0 {
				t.Error("a refused tree has a fleet")
			}
			if *update {
				archive.Comment = []byte(err.Error() + "\n")
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := strings.TrimSpace(string(archive.Comment)); err.Error() != want {
				t.Errorf("the error is\n%s\nand should be\n%s", err, want)
			}
		})
	}
}

// TestInheritance has a value of each kind at each level.
func TestInheritance(t *testing.T) {
	f := example(t)
	for _, c := range []struct{ region, cluster, key, want string }{
		{"us-east-2", "", "versions.atoll", "1.5.0"},                            // sector over defaults
		{"us-east-1", "", "versions.atoll", "1.4.2"},                            // defaults
		{"us-east-1", "", "git.revision", "3f5f4e47c1d2"},                       // sector
		{"us-east-1", "mc01", "git.revision", "3f5f4e47c1d2"},                   // sector, by the region
		{"us-east-1", "", "git.branch", "main"},                                 // built in
		{"eu-central-1", "", "dns.domain", "api.example.com"},                   // environment
		{"eu-central-1", "mc01", "managementCluster.labels.class", "shared"},    // defaults
		{"eu-central-1", "mc02", "managementCluster.labels.class", "dedicated"}, // cluster
		{"eu-central-1", "mc02", "managementCluster.labels.customer", "acme"},   // cluster, new key
		{"eu-central-1", "mc02", "managementCluster.capacity.planes", "10"},
		{"eu-central-1", "mc02", "managementCluster.capacity.memory_mib", "16000"},
		{"us-east-1", "mc02", "terraform.global.tags.cost_center", "<nil>"}, // deleted
		{"us-east-1", "mc01", "terraform.global.tags.cost_center", "4711"},
		{"us-east-1", "mc02", "terraform.management-cluster.node_instance_families", "[r7i]"}, // list replaces
	} {
		r, err := f.Region(c.region)
		if err != nil {
			t.Fatal(err)
		}
		explain := r.Explain
		if c.cluster != "" {
			cluster, err := r.Cluster(c.cluster)
			if err != nil {
				t.Fatal(err)
			}
			explain = cluster.Explain
		}
		e, err := explain(c.key)
		if err != nil || len(e) != 1 || fmt.Sprint(e[0].Value) != c.want {
			t.Errorf("%s %s %s: %v %v, want %s", c.region, c.cluster, c.key, e, err, c.want)
		}
	}
}

// TestExplainNamesEveryLevel follows one value from the defaults to the sector.
func TestExplainNamesEveryLevel(t *testing.T) {
	r, err := example(t).Region("production/us-east-2")
	if err != nil {
		t.Fatal(err)
	}
	all, err := r.Explain("values.global.logLevel")
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	var lines []string
	for _, s := range all[0].Settings {
		lines = append(lines, fmt.Sprintf("%v %s", s.Value, s.At))
	}
	want := "debug config/production/sectors/canary.yaml:6, info config/defaults.yaml:25"
	if got := strings.Join(lines, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if all[0].Description == "" {
		t.Error("the key has no description")
	}
	if _, err := r.Explain("values.global.loglevel"); err == nil || !strings.Contains(err.Error(), "logLevel") {
		t.Errorf("an unknown key: %v", err)
	}
}

// TestAClusterDoesNotInheritTheRegionsAccount: each cluster has an account of its own.
func TestAClusterDoesNotInheritTheRegionsAccount(t *testing.T) {
	f, err := Load(fsOf(t, `
-- defaults.yaml --
git: {repository: r}
-- p/environment.yaml --
sectors: [main]
-- p/regions/r1.yaml --
sector: main
aws: {accountId: "100000000001"}
managementClusters: {mc01: }
`), "config")
	if err != nil {
		t.Fatal(err)
	}
	if account := f.Regions()[0].Clusters[0].Settings.AWS.AccountID; account != "" {
		t.Errorf("the account of the management cluster is %q", account)
	}
}

// TestShards reads the form of the ROSA regional platform: pins for each type of cluster,
// values for all types under global and beside the types.
func TestShards(t *testing.T) {
	f, err := Load(fsOf(t, `
-- config.yaml --
git: {repository: https://github.com/example/platform.git}
shards:
  - region: "us-west-2"
    environment: "integration"
    config_revision: {management-cluster: "abcdef0", regional-cluster: "1234567"}
    values:
      global: {a: 1, b: {c: 1}}
      b: {d: 2}
      management-cluster:
        hypershift: {oidcStorageS3Bucket: {name: hypershift-mc-us-west-2, region: us-west-2}}
`), "argocd")
	if err != nil {
		t.Fatal(err)
	}
	files, err := Render(f)
	if err != nil {
		t.Fatal(err)
	}
	mc := "integration/us-west-2/management-clusters/management-01/"
	for path, want := range map[string]string{
		mc + "values.yaml": "a: 1\nb:\n  c: 1\n  d: 2\nhypershift:\n  oidcStorageS3Bucket:\n" +
			"    name: hypershift-mc-us-west-2\n    region: us-west-2\n",
		mc + "apps/applicationset.yaml":                                   "revision: abcdef0\n",
		"integration/us-west-2/regional-cluster/values.yaml":              "a: 1\nb:\n  c: 1\n  d: 2\n",
		"integration/us-west-2/regional-cluster/apps/applicationset.yaml": "revision: \"1234567\"\n",
	} {
		if !strings.Contains(string(files[path]), want) {
			t.Errorf("%s is\n%s\nand should contain\n%s", path, files[path], want)
		}
	}
}

// FuzzLoad: no file makes Load panic or hang, and what is loaded can be rendered.
func FuzzLoad(f *testing.F) {
	f.Add("git: {repository: r}\nvalues: {global: {a: [1, 0x10, 1.5, yes, null, 2020-01-01]}}\n")
	f.Add("a: &a [*a]\n")
	f.Add("a: &a {b: *a}\n<<: {c: 1}\n")
	f.Fuzz(func(t *testing.T, defaults string) {
		fleet, err := Load(mapFS{"defaults.yaml": defaults, "p/environment.yaml": "sectors: [main]",
			"p/regions/r1.yaml": "sector: main\nmanagementClusters: {mc01: }\n"}.files(), "config")
		if err == nil {
			_, err = Render(fleet)
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestExplainNamesTheLevelThatDeletedAKey deletes a key, a mapping around it, and one that a later level sets again.
func TestExplainNamesTheLevelThatDeletedAKey(t *testing.T) {
	f, err := Load(mapFS{
		"defaults.yaml":       "git: {repository: r}\nvalues:\n  global:\n    a: {b: 1, c: {d: 2}}\n    e: {f.g: 3}\n",
		"p/environment.yaml":  "sectors: [main]\nvalues:\n  global:\n    e: null\n",
		"p/sectors/main.yaml": "values:\n  global:\n    a: null\n",
		"p/regions/r1.yaml":   "sector: main\nvalues:\n  global:\n    a: {b: 4}\n",
	}.files(), "config")
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"values.global.a.b":   "4 at config/p/regions/r1.yaml:4",
		"values.global.a.c.d": "deleted at config/p/sectors/main.yaml:3, 2 at config/defaults.yaml:4",
		"values.global.e.f.g": "deleted at config/p/environment.yaml:4, 3 at config/defaults.yaml:5",
		"values.global.e":     "deleted at config/p/environment.yaml:4, map[f.g:3] at config/defaults.yaml:5",
	} {
		all, err := f.Environments[0].Regions[0].Explain(key)
		if err != nil || len(all) != 1 {
			t.Errorf("%s: %v, %v", key, all, err)
			continue
		}
		var texts []string
		for _, s := range all[0].Settings {
			text := fmt.Sprint(s.Value)
			if s.Deleted {
				text = "deleted"
			}
			texts = append(texts, fmt.Sprintf("%s at %s", text, s.At))
		}
		if got := strings.Join(texts, ", "); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if _, err := f.Environments[0].Regions[0].Explain("values.global.a.x"); err == nil {
		t.Error("a key that no level has set was explained")
	}
}
