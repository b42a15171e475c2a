package gitrepo

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// world is a remote repository with one commit on its branch main, and clones of it.
type world struct {
	t      *testing.T
	dir    string
	remote string
}

func newWorld(t *testing.T) *world {
	for _, variable := range os.Environ() { // a hook of git has those of its own repository
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "GIT_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+who+"_NAME", "ann")
		t.Setenv("GIT_"+who+"_EMAIL", "ann@example.com")
	}
	w := &world{t: t, dir: t.TempDir()}
	w.remote = filepath.Join(w.dir, "remote")
	w.git(w.dir, "init", "-q", "--bare", "-b", "main", w.remote)
	w.git(w.dir, "clone", "-q", w.remote, "first")
	first := filepath.Join(w.dir, "first")
	w.git(first, "checkout", "-q", "-b", "main")
	w.write("first", "config/a.yaml", "a: 1\n")
	w.write("first", "other", "kept\n")
	w.git(first, "add", ".")
	w.git(first, "commit", "-q", "-m", "begin")
	w.git(first, "push", "-q", "origin", "main")
	return w
}

func (w *world) git(dir string, args ...string) string {
	w.t.Helper()
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (w *world) write(clone, name, text string) {
	w.t.Helper()
	file := filepath.Join(w.dir, clone, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) clone(name string) Branch {
	w.t.Helper()
	w.git(w.dir, "clone", "-q", w.remote, name)
	return Branch{Dir: filepath.Join(w.dir, name), Remote: "origin", Name: "main"}
}

func head(t *testing.T, b Branch) string {
	t.Helper()
	commit, err := b.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return commit
}

func TestACommitReplacesAndRemovesFilesAndLeavesTheCheckout(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	before := head(t, b)
	files := map[string][]byte{"config/a.yaml": nil, "config/ü \"b\".yaml": []byte("b: 2\n")}
	commit, err := b.Add(t.Context(), before, files, "change\n\nwith a body\n")
	if err != nil || head(t, b) != commit {
		t.Fatal(commit, err)
	}
	if got := w.git(w.remote, "log", "--format=%s|%b|%an", "-1", "main"); got != "change|with a body\n|atoll" {
		t.Errorf("the commit is %q", got)
	}
	tree, err := b.Tree(t.Context(), commit, "config")
	if err != nil {
		t.Fatal(err)
	}
	if names, _ := fs.Glob(tree, "*"); len(names) != 1 || names[0] != "ü \"b\".yaml" {
		t.Errorf("config has %q", names)
	}
	if data, err := b.ReadFile(t.Context(), commit, "other"); string(data) != "kept\n" {
		t.Errorf("other is %q, %v", data, err)
	}
	if _, err := b.ReadFile(t.Context(), commit, "config/a.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("config/a.yaml: %v", err)
	}
	if tree, err := b.Tree(t.Context(), commit, "none"); err != nil {
		t.Error(err)
	} else if names, _ := fs.Glob(tree, "*"); len(names) != 0 {
		t.Errorf("none has %q", names)
	}
	if got := w.git(b.Dir, "status", "--porcelain"); got != "" {
		t.Errorf("the checkout changed: %s", got)
	}
	if got := w.git(b.Dir, "for-each-ref", "refs/atoll/new"); got != "" {
		t.Errorf("there remain %s", got)
	}
}

// TestOfWritersOnOneCommitOneWins lets five clones add a commit to the same parent.
func TestOfWritersOnOneCommitOneWins(t *testing.T) {
	w := newWorld(t)
	var clones []Branch
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		clones = append(clones, w.clone(name))
	}
	parent := head(t, clones[0])
	var won atomic.Int32
	var wg sync.WaitGroup
	for _, b := range clones {
		wg.Go(func() {
			for t.Context().Err() == nil {
				switch _, err := b.Add(t.Context(), parent, map[string][]byte{"who": []byte(b.Dir)}, "mine"); {
				case err == nil:
					won.Add(1)
					return
				case errors.Is(err, ErrStale):
					return
				case errors.Is(err, ErrRefused): // a lock of another writer is no refusal: try again
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || w.git(w.remote, "rev-list", "--count", "main") != "2" {
		t.Errorf("%d writers won", won.Load())
	}
	// A branch that was set back to an earlier commit is stale too.
	now := head(t, clones[0])
	w.git(w.remote, "update-ref", "refs/heads/main", parent)
	if _, err := clones[0].Add(t.Context(), now, map[string][]byte{"x": nil}, "after"); !errors.Is(err, ErrStale) {
		t.Errorf("after the branch was set back: %v", err)
	}
	if follows, err := clones[0].IsAncestor(t.Context(), now, head(t, clones[0])); err != nil || follows {
		t.Errorf("%t, %v", follows, err)
	}
}

func TestARefusalOfTheRemoteIsNotTakenForARace(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	hook := filepath.Join(w.remote, "hooks", "pre-receive")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho no; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(t.Context(), head(t, b), map[string][]byte{"x": []byte("1")}, "x"); err == nil ||
		errors.Is(err, ErrStale) || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "hook declined") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	// A lock that a killed process has left: nobody knows how long it stays.
	lock := filepath.Join(w.remote, "refs", "heads", "main.lock")
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(t.Context(), head(t, b), map[string][]byte{"x": []byte("1")}, "x"); err == nil ||
		errors.Is(err, ErrStale) || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "main") {
		t.Errorf("with a lock: got %v", err)
	}
}

func TestADirtyOrDivergedCheckoutIsRefused(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	check := func(want string) {
		t.Helper()
		err := b.CheckCheckout(t.Context(), head(t, b), "config")
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrDirty) || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	check("")
	w.write("clone", "other", "not of the configuration\n")
	check("")
	w.write("clone", "config/a.yaml", "a: 2\n")
	check("config/a.yaml:1: the checkout differs from the branch: this is not committed")
	w.write("clone", "config/a.yaml", "a: 1\n# two\n# three\n")
	check("config/a.yaml:2: ")
	w.write("clone", "config/a.yaml", "")
	check("config/a.yaml:1: ")
	w.write("clone", "config/a.yaml", "a: 1\nb: 2\n")
	w.git(b.Dir, "add", "config/a.yaml")
	check("config/a.yaml:2: ") // staged
	w.git(b.Dir, "mv", "config/a.yaml", "config/ü \"b\".yaml")
	check("config/a.yaml:1: ") // moved away
	w.git(b.Dir, "mv", "config/ü \"b\".yaml", "config/a.yaml")
	w.write("clone", "config/0 \"ü\".yaml", "new\n")
	w.git(b.Dir, "commit", "-q", "-m", "mine", "config/a.yaml")
	check("config/0 \"ü\".yaml:1: ")
	if err := os.Remove(filepath.Join(b.Dir, "config/0 \"ü\".yaml")); err != nil {
		t.Fatal(err)
	}
	check("config/a.yaml:2: the checkout differs from the branch: the commit ")
	check("push it, or rebase it")
	w.git(b.Dir, "push", "-q", "origin", "main")
	w.write("clone", "other", "kept\nmore\n")
	w.git(b.Dir, "commit", "-q", "-m", "of another file", "other")
	check("other:2: ")
	w.git(b.Dir, "push", "-q", "origin", "main")
	w.git(b.Dir, "commit", "-q", "--allow-empty", "-m", "of no file")
	check("the checkout differs from the branch: the commit ")
	w.git(b.Dir, "push", "-q", "origin", "main")
	check("")
	if err := (Branch{Dir: w.remote, Remote: "origin", Name: "main"}).CheckCheckout(t.Context(), "x"); err != nil {
		t.Errorf("a bare repository: %v", err)
	}
}

func TestAMissingBranchIsAnErrorThatNamesIt(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	b.Name = "nowhere"
	if _, err := b.Head(t.Context()); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v", err)
	}
}

// TestTheEnvironmentOfAHookDoesNotNameAnotherRepository reads a clone while the environment names another one.
func TestTheEnvironmentOfAHookDoesNotNameAnotherRepository(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	want := head(t, b)
	other := filepath.Join(w.dir, "other")
	w.git(w.dir, "init", "-q", other)
	t.Setenv("GIT_DIR", filepath.Join(other, ".git"))
	t.Setenv("GIT_WORK_TREE", other)
	t.Setenv("GIT_INDEX_FILE", filepath.Join(other, ".git", "index"))
	if got, err := b.Head(t.Context()); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestAnOptionIsNoRemote(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	parent, trace := head(t, b), filepath.Join(w.dir, "trace")
	b.Remote = "--receive-pack=touch " + trace + ";"
	if _, err := b.Add(t.Context(), parent, map[string][]byte{"x": []byte("1")}, "x"); err == nil {
		t.Error("a commit was added")
	}
	b.Remote = "--upload-pack=touch " + trace + ";"
	if _, err := b.Head(t.Context()); err == nil {
		t.Error("a branch was read")
	}
	if _, err := os.Stat(trace); err == nil {
		t.Error("the remote was run as a command")
	}
}

func TestAShallowCloneHasNoRewrittenHistory(t *testing.T) {
	w := newWorld(t)
	first := w.clone("clone")
	begin := head(t, first)
	if _, err := first.Add(t.Context(), begin, map[string][]byte{"x": []byte("1")}, "x"); err != nil {
		t.Fatal(err)
	}
	w.git(w.dir, "clone", "-q", "--depth=1", "file://"+w.remote, "shallow")
	b := Branch{Dir: filepath.Join(w.dir, "shallow"), Remote: "origin", Name: "main"}
	_, err := b.IsAncestor(t.Context(), begin, head(t, b))
	if err == nil || !strings.Contains(err.Error(), "--unshallow") {
		t.Errorf("got %v", err)
	}
}

// TestATreeHasTheFilesOfTheCommit reads files that attributes leave out of archives, or rewrite in a checkout.
func TestATreeHasTheFilesOfTheCommit(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	w.write("clone", "config/.gitattributes", "hidden.yaml export-ignore\nfiltered.yaml filter=upper diff=upper ident\n")
	w.write("clone", "config/hidden.yaml", "a: 1\n")
	w.write("clone", "config/filtered.yaml", "secret: $Id$\n\n")
	w.write("clone", "config/empty.yaml", "")
	if err := os.Symlink("a.yaml", filepath.Join(b.Dir, "config", "link.yaml")); err != nil {
		t.Fatal(err)
	}
	w.git(b.Dir, "add", ".")
	w.git(b.Dir, "commit", "-q", "-m", "attributes")
	w.git(b.Dir, "push", "-q", "origin", "main")
	w.git(b.Dir, "config", "filter.upper.smudge", "tr a-z A-Z")
	w.git(b.Dir, "config", "diff.upper.textconv", "tr a-z A-Z <")
	commit := head(t, b)
	tree, err := b.Tree(t.Context(), commit, "config")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a.yaml": "a: 1\n", "hidden.yaml": "a: 1\n", "empty.yaml": "",
		"filtered.yaml": "secret: $Id$\n\n"} {
		if data, err := fs.ReadFile(tree, name); err != nil || string(data) != want {
			t.Errorf("%s is %q, %v", name, data, err)
		}
		if data, err := b.ReadFile(t.Context(), commit, "config/"+name); err != nil || string(data) != want {
			t.Errorf("read, %s is %q, %v", name, data, err)
		}
	}
	some, err := b.Tree(t.Context(), commit, ".", "config/a.yaml", "absent")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	err = fs.WalkDir(some, ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil || !slices.Equal(names, []string{"config/a.yaml"}) {
		t.Errorf("below two paths are %v: %v", names, err)
	}
	if link, err := fs.Stat(tree, "link.yaml"); err != nil || link.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", link, err)
	}
}

// TestPathsAreThoseOfTheRepository checks a checkout from a directory in it.
func TestPathsAreThoseOfTheRepository(t *testing.T) {
	w := newWorld(t)
	b := w.clone("clone")
	w.write("clone", "config/a.yaml", "a: 2\n")
	b.Dir = filepath.Join(b.Dir, "config")
	if err := b.CheckCheckout(t.Context(), head(t, b), "config"); !errors.Is(err, ErrDirty) {
		t.Errorf("got %v", err)
	}
}
