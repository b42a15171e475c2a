package beneath

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// world is a directory of an attacker beside a file and a socket of somebody else.
func world(t *testing.T) (dir, secret string) {
	t.Helper()
	top := t.TempDir()
	dir, secret = filepath.Join(top, "dir"), filepath.Join(top, "secret")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{secret: "secret", filepath.Join(dir, "file"): "content",
		filepath.Join(dir, "sub", "file"): "below"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"outside": secret, "up": "../secret", "inside": "file",
		"dangling": filepath.Join(top, "new"), "directory": top, "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, secret
}

func TestFilesAreOpenedWithoutLinks(t *testing.T) {
	dir, secret := world(t)
	for name, want := range map[string]string{"file": "content", "sub/file": "below"} {
		if got, err := Read(dir, name, 100); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"outside", "up", "inside", "dangling", "directory/secret", "loop", "pipe", "sub",
		"../secret", secret} {
		if got, err := Read(dir, name, 100); err == nil || got != nil {
			t.Errorf("%s was read: %q", name, got)
		}
		for _, flags := range []int{os.O_WRONLY | os.O_CREATE | os.O_TRUNC, os.O_RDWR | os.O_CREATE | os.O_APPEND} {
			if f, err := OpenFile(dir, name, flags, 0o600); err == nil {
				f.Close()
				t.Errorf("%s was opened for writing", name)
			}
		}
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
		t.Errorf("the file of somebody else has %q, %v", got, err)
	}
	if _, err := os.Lstat(filepath.Join(filepath.Dir(dir), "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made through a link: %v", err)
	}
	if _, err := Read(dir, "nothing", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Read(dir, "outside", 100); !errors.Is(err, ErrKind) {
		t.Errorf("a link: %v", err)
	}
}

func TestTheSizeOfAFileIsLimited(t *testing.T) {
	dir, _ := world(t)
	if err := os.Truncate(filepath.Join(dir, "file"), 1<<40); err != nil { // no bytes on disk
		t.Fatal(err)
	}
	if _, err := Read(dir, "file", 1000); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want %v", err, ErrTooLarge)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(strings.Repeat("x", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir, "file", 1000); err != nil || len(got) != 1000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := List(dir, ".", 2); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a list of three names and more: %v", err)
	}
	if names, err := List(dir, "sub", 2); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := List(dir, "directory", 100); err == nil {
		t.Error("a directory was listed through a link")
	}
}

func TestASocketIsReachedWithoutLinks(t *testing.T) {
	dir, _ := world(t)
	top := filepath.Dir(dir)
	t.Chdir(top) // names of sockets are short
	l, err := net.Listen("unix", "foreign.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink("../foreign.sock", filepath.Join(dir, "etcd.sock")); err != nil {
		t.Fatal(err)
	}
	for dir, names := range map[string][]string{dir: {"etcd.sock", "file", "pipe", "../foreign.sock"}, ".": {"dir"}} {
		for _, name := range names {
			if c, err := DialUnix(t.Context(), dir, name); err == nil {
				c.Close()
				t.Errorf("%s: connected", name)
			}
		}
	}
	c, err := DialUnix(t.Context(), top, "foreign.sock")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
