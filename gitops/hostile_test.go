package gitops

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestTheTreeHasNoSymbolicLinks: a link may leave the tree, and in a revision of Git it is the text of its target.
func TestTheTreeHasNoSymbolicLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, fsOf(t, oneRegion)); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"q": "p", "p/regions/r2.yaml": "r1.yaml", "p/sectors": "../../elsewhere"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Load(os.DirFS(dir), "config")
	want := "config/q:1: this is a symbolic link; put the file here\n" +
		"config/p/sectors:1: this is a symbolic link; put the file here\n" +
		"config/p/regions/r2.yaml:1: this is a symbolic link; put the file here"
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nand should be\n%s", err, want)
	}
}

// TestWriteStaysInItsDirectory: a symbolic link below the directory is in the way, wherever it points.
func TestWriteStaysInItsDirectory(t *testing.T) {
	files := renderTree(t, oneRegion)
	for _, c := range []struct{ link, target string }{
		{"p", "OUTSIDE"}, {"p/r1/management-clusters", "OUTSIDE"}, {"p/r1/region.yaml", "OUTSIDE/missing"},
		{"p/r1/region.yaml", "OUTSIDE/file"},
	} {
		outside := t.TempDir()
		if err := os.WriteFile(filepath.Join(outside, "file"), []byte("mine\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		dir := Directory(t.TempDir())
		link := dir.file(c.link)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(strings.Replace(c.target, "OUTSIDE", outside, 1), link); err != nil {
			t.Fatal(err)
		}
		if _, err := dir.Write(context.Background(), files); err == nil || !strings.Contains(err.Error(), link+" was not") {
			t.Errorf("%s -> %s: %v", c.link, c.target, err)
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
			t.Errorf("%s -> %s: outside are now %v, %v", c.link, c.target, entries, err)
		}
	}
}

// TestTheDirectoryMayBeASymbolicLink: rendered files are found below it, so that stale ones are removed.
func TestTheDirectoryMayBeASymbolicLink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "deploy")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	files := renderTree(t, oneRegion)
	for i, want := range []int{len(files), 0} {
		if changed, err := Directory(link).Write(context.Background(), files); err != nil || len(changed) != want {
			t.Errorf("write %d changed %d files, want %d: %v", i, len(changed), want, err)
		}
	}
	if changed, err := Directory(link).Write(context.Background(), Files{}); err != nil || len(changed) != len(files) {
		t.Errorf("%d of %d stale files were removed: %v", len(changed), len(files), err)
	}
}

// TestAFileThatMentionsTheMarkerIsForeign: the marker counts only where Render puts it.
func TestAFileThatMentionsTheMarkerIsForeign(t *testing.T) {
	dir := Directory(t.TempDir())
	text := "# Deploy\n\nEach file here begins with: # " + marker + "\n"
	if err := os.WriteFile(dir.file("README.md"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if changed, err := dir.Write(context.Background(), Files{}); err != nil || len(changed) != 0 {
		t.Errorf("%v: %v", changed, err)
	}
}

// TestVariablesDoNotHideTheMarker: names of variables that sort before the marker, or are its key.
func TestVariablesDoNotHideTheMarker(t *testing.T) {
	tree := strings.Replace(oneRegion, "sector: main\n",
		"sector: main\nterraform: {global: {\"-\": \""+strings.Repeat("x", 1000)+"\", \"//\": mine}}\n", 1)
	files := renderTree(t, tree)
	for path, data := range files {
		if !IsRendered(data[:min(len(data), markerHead)]) {
			t.Errorf("%s begins with %.200s", path, data)
		}
	}
}

// TestLargeNumbersStayExact: Helm reads the digits that the configuration has.
func TestLargeNumbersStayExact(t *testing.T) {
	tree := strings.Replace(oneRegion, "sector: main\n",
		"sector: main\nvalues: {global: {a: 18446744073709551615, b: 1.5, c: 1e30, d: -9223372036854775808}}\n", 1)
	values := string(renderTree(t, tree)["p/r1/regional-cluster/values.yaml"])
	if want := "a: 18446744073709551615\nb: 1.5\nc: 1e+30\nd: -9223372036854775808\n"; !strings.HasSuffix(values, want) {
		t.Errorf("the values are\n%s", values)
	}
}

// TestKeysWithPoints: {a: {b.c: 1}} and {a.b: {c: 2}} are different settings, of which each is found.
func TestKeysWithPoints(t *testing.T) {
	load := func(global string) Fleet {
		f, err := Load(fsOf(t, strings.Replace(oneRegion, "sector: main\n",
			"sector: main\nvalues: {regional-cluster: "+global+"}\n", 1)), "config")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	before := load("{a: {x: 0}, a.b: {c: 1}, p.q: 1, p: {q: 2}}")
	after := load("{a: {x: 0}, a.b: {c: 1}, p.q: 2, p: {q: 1}}")
	if e, err := before.Regions()[0].Explain("values.regional-cluster.a.b.c"); err != nil || e[0].Value != int64(1) {
		t.Errorf("%v: %v", e, err)
	}
	want := []ValueChange{
		{Key: "values.regional-cluster.p.q", Before: int64(2), After: int64(1)},
		{Key: "values.regional-cluster.p.q", Before: int64(1), After: int64(2)},
	}
	for range 20 { // maps have another order each time
		if changes := Compare(before, after); len(changes) != 2 || !reflect.DeepEqual(changes[0].Values, want) {
			t.Fatalf("the changes are %v", changes)
		}
	}
}

// TestAShardPinsOneTypeOfCluster: without a pin of its own a management cluster follows the revision of the file.
func TestAShardPinsOneTypeOfCluster(t *testing.T) {
	for git, want := range map[string]string{"{repository: r}": "", "{repository: r, revision: v1}": "v1"} {
		f, err := Load(fsOf(t, "-- config.yaml --\ngit: "+git+"\nshards:\n"+
			"  - {region: r1, environment: p, config_revision: {regional-cluster: \"1234567\"}}\n"), "config")
		if err != nil {
			t.Fatal(err)
		}
		r := f.Regions()[0]
		if got := r.Clusters[0].Settings.Git.Revision; r.Settings.Git.Revision != "1234567" || got != want {
			t.Errorf("git: %s: the region has %q and the management cluster %q, want %q", git, r.Settings.Git.Revision, got,
				want)
		}
	}
}

// TestADeletedServiceSettingHasItsDefault: null deletes what a level inherits, also what is built in.
func TestADeletedServiceSettingHasItsDefault(t *testing.T) {
	files := renderTree(t, strings.Replace(oneRegion, "sector: main\n", "sector: main\nservices: null\n", 1))
	if region := files["p/r1/region.yaml"]; !strings.Contains(string(region), "placementShownTo: operators") {
		t.Errorf("the region is\n%s", region)
	}
}
