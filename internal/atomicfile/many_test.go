package atomicfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWriteManyReplacesAndLeavesNothingBehind(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	dir := filepath.Join(t.TempDir(), "new")
	for _, text := range []string{"one", "two"} {
		files := map[string][]byte{"a": []byte(text), "b/c/d": []byte(text), "b/e": []byte(text), "b/c/f/g/h": nil}
		if err := WriteMany(dir, files, 0o640); err != nil {
			t.Fatal(err)
		}
		for path := range files {
			file := filepath.Join(dir, path)
			data, err := os.ReadFile(file)
			info, statErr := os.Stat(file)
			if err != nil || statErr != nil || string(data) != string(files[path]) || info.Mode().Perm() != 0o640 {
				t.Errorf("%s has %q and %v: %v %v", path, data, info.Mode(), err, statErr)
			}
		}
	}
	// A directory in the way of one file: no temporary file is left.
	if err := os.MkdirAll(filepath.Join(dir, "e", "f"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteMany(dir, map[string][]byte{"e": nil, "g": nil}, 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if info, err := os.Stat(filepath.Join(dir, "b", "c")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("a directory has the mode %v, not that of the umask: %v", info.Mode(), err)
	}
	for _, sub := range []string{".", "b", "b/c"} {
		left, err := filepath.Glob(filepath.Join(dir, sub, TempPrefix+"*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%v are left: %v", left, err)
		}
	}
	if err := WriteMany(filepath.Join(dir, "absent"), nil, 0o600); err != nil {
		t.Errorf("no files: %v", err)
	}
}
