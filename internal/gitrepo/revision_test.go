package gitrepo

import (
	"errors"
	"io/fs"
	"path/filepath"
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
