package serve

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What an earlier process of the plane has left under the name of the lock makes the next one, which begins with more
// rights, write into nothing else.
func TestALockIsNoLink(t *testing.T) {
	top := t.TempDir()
	foreign := filepath.Join(top, "foreign")
	if err := os.WriteFile(foreign, []byte("foreign"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, leave := range map[string]func(path string) error{
		"link":          func(path string) error { return os.Symlink(foreign, path) },
		"dangling link": func(path string) error { return os.Symlink(filepath.Join(top, "new"), path) },
		"pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		dir := filepath.Join(top, name)
		if err := errors.Join(os.Mkdir(dir, 0o700), leave(filepath.Join(dir, "lock"))); err != nil {
			t.Fatal(err)
		}
		if release, err := claim(dir); err == nil {
			release()
			t.Errorf("%s: the directory was claimed", name)
		}
	}
	if content, err := os.ReadFile(foreign); err != nil || string(content) != "foreign" {
		t.Errorf("the file of somebody else: %q, %v", content, err)
	}
	if _, err := os.Lstat(filepath.Join(top, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made through a link: %v", err)
	}
	release, err := claim(filepath.Join(top, "own"))
	if err != nil {
		t.Fatal(err)
	}
	release()
}
