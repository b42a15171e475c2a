package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// The permissions are those of the call, independent of the umask and the old file, and no
// temporary file remains.
func TestWriteReplacesContentAndPermissions(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for i, perm := range []fs.FileMode{0o600, 0o644, 0o600} {
		if err := Write(path, fmt.Append(nil, i), perm); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); info.Mode().Perm() != perm || string(got) != fmt.Sprint(i) {
			t.Errorf("write %d: %s with mode %v, want mode %v", i, got, info.Mode(), perm)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("the directory has %v", got)
	}
}

// A rewrite that fails leaves the old content and its one temporary file, and the next call uses that.
func TestRewriteUsesOneTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := Rewrite(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := path + ".tmp"
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if err := Rewrite(path, []byte("new"), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("after a full disk the file has %q", got)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte("of a killed writer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Rewrite(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "new" || len(names(t, dir)) != 1 {
		t.Errorf("the file has %q, the directory %v", got, names(t, dir))
	}
}

// Readers see the old content or the new one, never a part.
func TestReadersSeeWholeContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%20)}, 100_000) }
	if err := Write(path, content(0), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		defer done.Store(true)
		for i := range 50 {
			if err := Write(path, content(i), 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	for !done.Load() {
		got, err := os.ReadFile(path)
		if err != nil || len(got) != 100_000 || bytes.Count(got, got[:1]) != len(got) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	wg.Wait()
}

func TestAFailedWriteLeavesTheOldContent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.Mkdir(path, 0o700); err != nil { // a directory cannot be replaced
		t.Fatal(err)
	}
	if err := Write(path, []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if got := names(t, dir); len(got) != 1 || got[0] != "f" {
		t.Errorf("the directory has %v", got)
	}
}

func TestOneOfManyCreatorsSucceeds(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	var wg sync.WaitGroup
	var made atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			switch err := Create(path, bytes.Repeat([]byte{byte('a' + i)}, 1000), 0o600); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			default:
				if got, err := os.ReadFile(path); err != nil || len(got) != 1000 || bytes.Count(got, got[:1]) != 1000 {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 || len(names(t, dir)) != 1 {
		t.Errorf("%d creators succeeded; the directory has %v", made.Load(), names(t, dir))
	}
}

func TestSweepTempRemovesOldTemporaryFilesOnly(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * tempAge)
	for name, at := range map[string]time.Time{TempPrefix + "old": old, TempPrefix + "new": time.Now(), "kept": old} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := SweepTemp(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 2 || got[0] != TempPrefix+"new" || got[1] != "kept" {
		t.Errorf("the directory has %v", got)
	}
}
