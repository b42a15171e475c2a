package gitops

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestAFileOfACommitThatDiffersIsNamedWithItsLine(t *testing.T) {
	files := renderTree(t, oneRegion)
	const region, values = "p/r1/region.yaml", "p/r1/regional-cluster/values.yaml"
	tree := fstest.MapFS{
		"README":             {Data: []byte("# not rendered")},
		"p/r2/region.yaml":   {Data: files[region]},
		"p/r3/ownership.yml": {Data: []byte("of: somebody else")},
	}
	for path, data := range files {
		tree[path] = &fstest.MapFile{Data: data}
	}
	tree[region] = &fstest.MapFile{Data: append(slices.Clone(files[region]), "more: 1\n"...)}
	tree["p/r1/regional-cluster/root.yaml"] = &fstest.MapFile{Data: []byte("without the marker")}
	delete(tree, values)
	differences, err := CompareTree(tree, files)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range differences {
		got = append(got, d.FirstLine())
	}
	want := []string{
		region + `:11: the file has "more: 1", the configuration renders ""`,
		`p/r1/regional-cluster/root.yaml:1: the file has "without the marker", the configuration renders "# ` + marker + `"`,
		values + ":1: the file is missing",
		"p/r2/region.yaml:1: nothing renders the file any more",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
