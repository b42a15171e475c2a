package operator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/gitops"
	"atoll.dev/local"
)

// TestStatusComparesTheTreeWithTheRenderedFiles edits a tree after it was rendered.
func TestStatusComparesTheTreeWithTheRenderedFiles(t *testing.T) {
	top := t.TempDir()
	config, deploy := filepath.Join(top, "config"), filepath.Join(top, "deploy")
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(config, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := findTree(deploy, ""); got != "" {
		t.Errorf("a tree that is not there: %q", got)
	}
	write("defaults.yaml", "git: {repository: https://example.com/p.git}\n")
	write("prod/environment.yaml", "sectors: [main]\n")
	write("prod/regions/r1.yaml", "sector: main\nmanagementClusters: {mc01: {}}\n")
	write("prod/regions/r2.yaml", "sector: main\n")
	for _, c := range []struct{ from, named, want string }{
		{deploy, "", config}, {deploy, "none", ""}, {"x", config, config},
	} {
		if got := findTree(c.from, c.named); got != c.want {
			t.Errorf("the tree beside %s, named %q, is %q", c.from, c.named, got)
		}
	}
	fleet, err := gitops.Load(os.DirFS(config), config)
	if err != nil {
		t.Fatal(err)
	}
	files, err := gitops.Render(fleet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gitops.Directory(deploy).Write(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	rendered, err := local.ReadDeclaration(deploy, "r1")
	if err != nil {
		t.Fatal(err)
	}
	check := func(from string, want ...string) *gitops.Declaration {
		t.Helper()
		tree, differences, err := readTree(config, from, rendered)
		if err != nil || len(differences) != len(want) {
			t.Fatalf("from %s: %q, %v, want %q", from, differences, err, want)
		}
		for i, text := range want {
			if !strings.Contains(differences[i], text) {
				t.Errorf("from %s: %q, want %q", from, differences[i], text)
			}
		}
		return tree
	}
	regionDir := filepath.Join(deploy, "prod", "r1")
	for _, from := range []string{deploy, regionDir} {
		if tree := check(from); tree == nil || tree.Region != "r1" {
			t.Errorf("the tree declares %v", tree)
		}
	}

	write("prod/regions/r1.yaml", "sector: main\nservices: {replicas: {clm: 3}}\nmanagementClusters: {mc01: {}}\n")
	write("prod/regions/r2.yaml", "sector: main\nservices: {replicas: {clm: 9}}\n") // of another region
	tree := check(deploy, "applicationset.yaml:", "region.yaml:", "applicationset.yaml:")
	if tree.Services.Replicas["clm"] != 3 || rendered.Services.Replicas["clm"] != 0 {
		t.Errorf("the tree declares %v, rendered are %v", tree.Services.Replicas, rendered.Services.Replicas)
	}

	if err := os.Remove(filepath.Join(config, "prod", "regions", "r1.yaml")); err != nil {
		t.Fatal(err)
	}
	if tree := check(deploy, "prod/r1"); tree != nil {
		t.Errorf("the tree declares %v", tree)
	}
	write("prod/regions/r1.yaml", "sektor: main\n")
	_, _, err = readTree(config, deploy, rendered)
	if err == nil || !strings.Contains(err.Error(), "r1.yaml:1: unknown key") {
		t.Errorf("a mistake in the tree: %v", err)
	}
}
