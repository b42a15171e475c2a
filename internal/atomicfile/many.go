package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteMany writes files below dir, by their paths relative to it, and makes the
// directories that they need. After a crash each file has either its old content or
// its new content. With an error some may be new and others old; no temporary file is
// left.
//
// It syncs the whole file system twice instead of each file and its directory: tens of
// thousands of files take seconds and not minutes.
func WriteMany(dir string, files map[string][]byte, perm fs.FileMode) (err error) {
	staged := make([]*File, 0, len(files))
	replaced := 0
	defer func() {
		for _, f := range staged[replaced:] {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	for path, data := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		f, err := New(path, perm)
		if err != nil {
			return err
		}
		staged = append(staged, f)
		_, err = f.Write(data)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	if len(staged) == 0 {
		return nil
	}
	if err := syncFileSystem(dir); err != nil {
		return err
	}
	for _, f := range staged {
		if err := os.Rename(f.Name(), f.path); err != nil {
			return fmt.Errorf("writing %s: %w", f.path, err)
		}
		replaced++
	}
	return syncFileSystem(dir)
}

// syncFileSystem makes everything durable that was written to the file system of a
// directory.
func syncFileSystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(d.Fd()))
	if err = errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("syncing the file system of %s: %w", dir, err)
	}
	return nil
}
