package gitrepo

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

func TestARevisionIsResolvedByTheRemote(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	first := head(t, b)
	w.git(b.Dir, "tag", "-a", "-m", "one", "v1")
	w.git(b.Dir, "push", "-q", "origin", "v1")
	w.git(b.Dir, "tag", "both")
	w.git(b.Dir, "push", "-q", "origin", "both", "HEAD:refs/heads/both")
	second, err := b.Add(t.Context(), first, map[string][]byte{"x": []byte("1")}, "x")
	if err != nil {
		t.Fatal(err)
	}
	w.git(b.Dir, "push", "-q", "origin", second+":refs/heads/release", "-f", second+":refs/heads/both")
	w.git(b.Dir, "tag", "local", second)
	for revision, want := range map[string]string{"v1": first, "both": first, "release": second, "main": second,
		second: second, first[:8]: first} {
		if got, err := b.Resolve(t.Context(), revision); err != nil || got != want {
			t.Errorf("%s is %s, %v, want %s", revision, got, err, want)
		}
	}
	for _, revision := range []string{"local", "nothing", "abcdef0", "HEAD", "--all", "main~1"} {
		if got, err := b.Resolve(t.Context(), revision); !errors.Is(err, ErrNoRevision) {
			t.Errorf("%s is %s, %v", revision, got, err)
		}
	}
}

func TestADirectoryAtARevision(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	w.write("clone", "config/.gitattributes", "a.yaml export-ignore\n")
	w.git(b.Dir, "add", ".")
	w.git(b.Dir, "commit", "-q", "-m", "attributes")
	files, err := AtRevision(t.Context(), filepath.Join(b.Dir, "config"), "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := fs.ReadFile(files, "a.yaml"); string(data) != "a: 1\n" {
		t.Errorf("%q, %v", data, err)
	}
	w.write("clone", "later/b.yaml", "b: 1\n")
	if _, err := AtRevision(t.Context(), filepath.Join(b.Dir, "later"), "HEAD"); !errors.Is(err, ErrNoDirectory) {
		t.Errorf("got %v", err)
	}
	if _, err := AtRevision(t.Context(), b.Dir, "--all"); err == nil {
		t.Error("an option is a revision")
	}
}

func TestPinnedFilesAreThoseOfTheRevision(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	first := head(t, b)
	w.git(b.Dir, "tag", "v1")
	w.git(b.Dir, "push", "-q", "origin", "v1")
	second, err := b.Add(t.Context(), first, map[string][]byte{"config/a.yaml": []byte("a: 2\n")}, "two")
	if err != nil {
		t.Fatal(err)
	}
	local := Branch{Dir: b.Dir} // without a remote: what the clone has fetched
	for _, c := range []struct {
		branch         Branch
		revision, want string
	}{
		{b, "v1", "a: 1\n"}, {b, "main", "a: 2\n"}, {b, second, "a: 2\n"}, {b, first[:8], "a: 1\n"},
		{local, "v1", "a: 1\n"}, {local, "main", "a: 2\n"}, {local, second, "a: 2\n"},
		{b, "none", ""}, {local, "none", ""}, {b, "abcdef0", ""}, {b, strings.Repeat("a", 40), ""},
		{Branch{Dir: w.dir}, "main", ""}, // no repository
	} {
		paths := []string{"config"}
		for range pathsAtOnce { // more than one command of git takes
			paths = append(paths, "config/a.yaml", "none")
		}
		files, err := c.branch.PinnedTree(t.Context(), c.revision, paths)
		if c.want == "" {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", c.revision, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.revision, err)
			continue
		}
		if data, err := fs.ReadFile(files, "config/a.yaml"); err != nil || string(data) != c.want {
			t.Errorf("%s with remote %q: %q, %v", c.revision, c.branch.Remote, data, err)
		}
		if _, err := fs.Stat(files, "other"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a file beside the paths: %v", c.revision, err)
		}
	}
}
