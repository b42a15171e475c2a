package gitops

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func renderTree(t *testing.T, archive string) Files {
	t.Helper()
	f, err := Load(fsOf(t, archive), "config")
	if err != nil {
		t.Fatal(err)
	}
	files, err := Render(f)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

const oneRegion = `
-- defaults.yaml --
git: {repository: r}
-- p/environment.yaml --
sectors: [main]
-- p/regions/r1.yaml --
sector: main
managementClusters: {mc01: }
`

// TestWriteRemovesStaleFiles: a region that the tree does not declare any more leaves no
// rendered file and no directory; files of others stay.
func TestWriteRemovesStaleFiles(t *testing.T) {
	dir := Directory(t.TempDir())
	ctx := context.Background()
	two := strings.Replace(oneRegion, "-- p/regions/r1.yaml --", "-- p/regions/r2.yaml --\nsector: main\n"+
		"-- p/regions/r1.yaml --", 1)
	if _, err := dir.Write(ctx, renderTree(t, two)); err != nil {
		t.Fatal(err)
	}
	foreign := dir.file("charts/values.yaml")
	if err := os.MkdirAll(filepath.Dir(foreign), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, []byte("a: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := renderTree(t, oneRegion)
	changed, err := dir.Write(ctx, files)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range changed {
		if d.After != nil || !strings.HasPrefix(d.Path, "p/r2/") {
			t.Errorf("%s was changed", d.Path)
		}
	}
	if len(changed) != 5 {
		t.Errorf("%d files were removed, want the 5 of r2", len(changed))
	}
	if _, err := os.Stat(dir.file("p/r2")); !os.IsNotExist(err) {
		t.Errorf("the directory of r2: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
	if again, err := dir.Write(ctx, files); err != nil || len(again) > 0 {
		t.Errorf("a second write changed %d files: %v", len(again), err)
	}
}

// TestWriteReplacesNoForeignFile: a file that was not rendered and is in the way stops
// the write before it changes anything.
func TestWriteReplacesNoForeignFile(t *testing.T) {
	dir := Directory(t.TempDir())
	mine := dir.file("p/r1/region.yaml")
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := dir.Write(context.Background(), renderTree(t, oneRegion))
	if err == nil || !strings.Contains(err.Error(), mine) {
		t.Errorf("the error is %v", err)
	}
	var found []string
	entries, err := os.ReadDir(dir.file("p/r1"))
	for _, e := range entries {
		found = append(found, e.Name())
	}
	if err != nil || !slices.Equal(found, []string{"region.yaml"}) {
		t.Errorf("the directory has %v: %v", found, err)
	}
}

// TestCompareShowsALine: a value that changed shows as a line of each side.
func TestCompareShowsALine(t *testing.T) {
	dir := Directory(t.TempDir())
	if _, err := dir.Write(context.Background(), renderTree(t, oneRegion)); err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(oneRegion, "sector: main\n", "sector: main\nvalues: {regional-cluster: {a: 2}}\n", 1)
	differences, err := dir.Compare(renderTree(t, changed))
	if err != nil || len(differences) != 1 || differences[0].Path != "p/r1/regional-cluster/values.yaml" {
		t.Fatalf("%v: %v", differences, err)
	}
	if text := differences[0].Text(); !strings.Contains(text, "\n-{}") || !strings.Contains(text, "\n+a: 2") {
		t.Errorf("the text is\n%s", text)
	}
}

// BenchmarkThousandRegions loads and renders 1,000 regions with 10 management clusters
// each, into a directory that is empty, and into one that has everything.
func BenchmarkThousandRegions(b *testing.B) {
	tree := bigTree(1000, 10)
	for _, name := range []string{"empty", "unchanged"} {
		b.Run(name, func(b *testing.B) {
			dir := Directory(b.TempDir())
			for b.Loop() {
				f, err := Load(tree, "config")
				if err != nil {
					b.Fatal(err)
				}
				files, err := Render(f)
				if err != nil {
					b.Fatal(err)
				}
				if name == "empty" {
					b.StopTimer()
					if err := os.RemoveAll(string(dir)); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				if _, err := dir.Write(b.Context(), files); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
