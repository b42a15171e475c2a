package gitops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// TestWriteSweepsWhatAKilledWriteHasLeft: the temporary files and directories of a process that was killed are neither
// rendered files nor left for a commit. Hidden files of others stay.
func TestWriteSweepsWhatAKilledWriteHasLeft(t *testing.T) {
	dir := Directory(t.TempDir())
	files := renderTree(t, oneRegion)
	for _, name := range []string{"p/r1/.tmp-123", ".tmp-456/p/r9/region.yaml", ".tmp-notes"} {
		if err := os.MkdirAll(filepath.Dir(dir.file(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir.file(name), files["p/r1/region.yaml"][:60], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir.file(".tmp-notes"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	changed, err := dir.Write(t.Context(), files)
	if err != nil || len(changed) != len(files) {
		t.Fatalf("%d of %d files were written: %v", len(changed), len(files), err)
	}
	for name, stays := range map[string]bool{"p/r1/.tmp-123": false, ".tmp-456": false, ".tmp-notes": true} {
		if _, err := os.Lstat(dir.file(name)); stays != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneProcessWritesADirectory: a second Write at the same time changes nothing, and says why.
func TestOneProcessWritesADirectory(t *testing.T) {
	dir := Directory(t.TempDir())
	unlock, err := dir.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Write(t.Context(), renderTree(t, oneRegion)); !errors.Is(err, ErrBusy) {
		t.Errorf("the error is %v", err)
	}
	unlock()
	if _, err := dir.Write(t.Context(), renderTree(t, oneRegion)); err != nil {
		t.Error(err)
	}
}

// BenchmarkThousandRegions loads and renders 1,000 regions with 10 management clusters
// each, into a directory that is empty, and into one that has everything. Each round of
// "empty" has a directory of its own, and all are removed in the end: ext4 makes files
// much more slowly in the minute after it has removed as many.
func BenchmarkThousandRegions(b *testing.B) {
	tree := bigTree(1000, 10)
	render := func(dir Directory) {
		f, err := Load(tree, "config")
		if err != nil {
			b.Fatal(err)
		}
		files, err := Render(f)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := dir.Write(b.Context(), files); err != nil {
			b.Fatal(err)
		}
	}
	root := b.TempDir()
	b.Run("empty", func(b *testing.B) {
		before := processorTime(b)
		for i := range b.N {
			render(Directory(filepath.Join(root, fmt.Sprint(b.N, "-", i))))
		}
		b.ReportMetric((processorTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
	})
	b.Run("unchanged", func(b *testing.B) {
		dir := Directory(filepath.Join(root, "1-0"))
		before := processorTime(b)
		for b.Loop() {
			render(dir)
		}
		b.ReportMetric((processorTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
	})
}

// processorTime returns the processor time of this process, which depends less on what else the machine does.
func processorTime(b *testing.B) time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
