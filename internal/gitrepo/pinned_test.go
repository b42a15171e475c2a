package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pinnedWorld is a clone that does not know what somebody else has pushed since: another commit on main, a moved tag
// v1, a branch release, and a branch whose name looks like a hash.
type pinnedWorld struct {
	*world
	clone         Branch
	first, second string // a: 1 and a: 2
}

func newPinnedWorld(t *testing.T) pinnedWorld {
	w := pinnedWorld{world: newWorld(t)}
	w.clone = w.world.clone("clone")
	w.first = head(t, w.clone)
	w.git(w.clone.Dir, "tag", "v1")
	w.git(w.clone.Dir, "push", "-q", "origin", "v1")
	other := w.world.clone("other")
	var err error
	w.second, err = other.Add(t.Context(), w.first, map[string][]byte{"config/a.yaml": []byte("a: 2\n")}, "two")
	if err != nil {
		t.Fatal(err)
	}
	w.git(other.Dir, "tag", "-f", "-a", "-m", "moved", "v1", w.second)
	w.git(other.Dir, "push", "-q", "-f", "origin", "v1", w.second+":refs/heads/release",
		w.second+":refs/heads/abcdef0")
	w.git(w.clone.Dir, "branch", "local")
	w.git(w.clone.Dir, "branch", "abcdef0")
	return w
}

// check compares the content of config/a.yaml ("": the revision is not checked) and a part of the note.
func (w pinnedWorld) check(b Branch, revision, want, note string) {
	w.t.Helper()
	paths := []string{"config"}
	for range pathsAtOnce { // more than one command of git takes
		paths = append(paths, "config/a.yaml", "none")
	}
	files, got, err := b.PinnedTree(w.t.Context(), revision, paths)
	if err != nil || !strings.Contains(got, note) || (note == "") != (got == "") || strings.Contains(got, "\n") {
		w.t.Errorf("%s: the note is %q, %v, want %q", revision, got, err, note)
	}
	if (files == nil) != (want == "") {
		w.t.Errorf("%s: the files are %v", revision, files)
	}
	if files == nil {
		return
	}
	if data, err := fs.ReadFile(files, "config/a.yaml"); err != nil || string(data) != want {
		w.t.Errorf("%s: %q, %v, want %q", revision, data, err, want)
	}
	if _, err := fs.Stat(files, "other"); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("%s: a file beside the paths: %v", revision, err)
	}
}

func TestPinnedFilesAreThoseThatTheRemoteHasNow(t *testing.T) {
	w := newPinnedWorld(t)
	for _, revision := range []string{"main", "v1", "release", "abcdef0"} {
		commit, err := w.clone.Resolve(t.Context(), revision)
		if err != nil || commit != w.second {
			t.Errorf("%s is %s, %v", revision, commit, err)
		}
		w.check(w.clone, revision, "a: 2\n", "")
	}
	w.check(w.clone, w.second, "a: 2\n", "")
	w.check(w.clone, w.first, "a: 1\n", "")
	const missing = "not checked: origin has no such tag or branch, and the clone no such commit"
	for _, revision := range []string{"local", "none", "abcdef1", "HEAD", "main~1", "--all"} {
		w.check(w.clone, revision, "", missing)
	}
	w.check(w.clone, strings.Repeat("a", 40), "", "not checked: git fetch")
	// A local branch does not stand in the way of the commit whose abbreviation is its name.
	w.git(w.clone.Dir, "branch", w.first[:8], w.second)
	if got, err := w.clone.Resolve(t.Context(), w.first[:8]); err != nil || got != w.first {
		t.Errorf("%s is %s, %v", w.first[:8], got, err)
	}
	w.check(w.clone, w.first[:8], "a: 1\n", "")
	// A mirror has one branch of the remote, and fetches others and commits.
	for _, revision := range []string{"release", w.second} {
		mirror, err := Mirror(t.Context(), filepath.Join(t.TempDir(), "mirror"), w.remote, "main")
		if err != nil {
			t.Fatal(err)
		}
		w.check(mirror, revision, "a: 2\n", "")
	}
}

func TestTheCloneCountsWhereNoRemoteAnswers(t *testing.T) {
	w := newPinnedWorld(t)
	if err := os.Rename(w.remote, w.remote+"-away"); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("checked at the clone's commit %.12s, since ", w.first)
	for _, c := range []struct {
		branch Branch
		reason string
	}{{w.clone, "the remote does not answer: git ls-remote"}, {Branch{Dir: w.clone.Dir}, "no remote is asked"}} {
		for _, revision := range []string{"main", "v1", w.first[:8]} {
			w.check(c.branch, revision, "a: 1\n", at+c.reason)
		}
		w.check(c.branch, w.first, "a: 1\n", "")
		for _, revision := range []string{"release", "local", "abcdef0", w.second} {
			w.check(c.branch, revision, "", "not checked: it is not in this clone, and "+c.reason)
		}
	}
	w.check(Branch{Dir: w.dir}, "main", "", "not a git repository")
}

// TestAStoppedGitIsNoMissingRevision kills one command of git.
func TestAStoppedGitIsNoMissingRevision(t *testing.T) {
	w := newPinnedWorld(t)
	real, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, command := range []string{"ls-tree", "rev-parse", "cat-file"} {
		script := fmt.Sprintf("#!/bin/sh\n[ \"$3\" = %s ] && kill -9 $$\nexec %s \"$@\"\n", command, real)
		if err := os.WriteFile(filepath.Join(bin, "git"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		if files, note, err := w.clone.PinnedTree(t.Context(), w.first, []string{"config"}); err == nil {
			t.Errorf("%s: %v, %q", command, files, note)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, note, err := w.clone.PinnedTree(ended, "main", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", note, err)
	}
}
