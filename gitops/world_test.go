package gitops

import (
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"

	"golang.org/x/tools/txtar"
)

// mapFS has the texts of files by their paths.
type mapFS map[string]string

func (m mapFS) files() fs.FS {
	tree := fstest.MapFS{}
	for path, text := range m {
		tree[path] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

// fsOf returns the tree of an archive.
func fsOf(t *testing.T, archive string) fs.FS {
	t.Helper()
	tree, err := txtar.FS(txtar.Parse([]byte(archive)))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// bigTree has so many regions in three sectors, with so many management clusters each.
func bigTree(regions, clusters int) fs.FS {
	m := mapFS{
		"defaults.yaml": "git: {repository: https://example.com/platform.git}\nversions: {atoll: \"1.0\"}\n" +
			"values: {global: {logLevel: info}, management-cluster: {hypershift: {a: 1, b: [1, 2], c: {d: e}}}}\n" +
			"terraform: {global: {tags: {a: b, c: d}}}\nmanagementCluster: {capacity: {planes: 40}}\n",
		"production/environment.yaml":    "sectors: [canary, early, main]\ndns: {domain: example.com}\n",
		"production/sectors/canary.yaml": "versions: {atoll: \"1.1\"}\n",
		"production/sectors/main.yaml":   "git: {revision: abcdef0}\n",
	}
	for i := range regions {
		text := fmt.Sprintf("sector: %s\naws: {accountId: \"1%011d\"}\nmanagementClusters:\n",
			[]string{"canary", "early", "main"}[i%3], i)
		for j := range clusters {
			text += fmt.Sprintf("  mc%02d: {aws: {accountId: \"2%011d\"}}\n", j, i*clusters+j)
		}
		m[fmt.Sprintf("production/regions/r%04d.yaml", i)] = text
	}
	return m.files()
}
