package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// unfinished is beside the data while a first start makes it. A member that is killed between the
// creation of its log and its own entry in it never starts again: it waits for members that do not
// exist.
func unfinished(dir string) string { return dir + ".unfinished" }

// begin reports whether the data in dir has yet to be made. What a first start left that did not come
// to its end is removed; no client got an answer about a write in it. Data without the mark is never
// touched, whatever state it is in.
func begin(dir string) (first bool, err error) {
	mark := unfinished(dir)
	switch _, err := os.Stat(mark); {
	case err == nil:
		if err := os.RemoveAll(dir); err != nil {
			return false, fmt.Errorf("removing what an unfinished first start left: %w", err)
		}
		return true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	switch _, err := os.Stat(dir); {
	case err == nil:
		return false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return false, fmt.Errorf("data directory is not writable: %w", err)
	}
	return true, syncDir(filepath.Dir(mark))
}

// finish marks the data in dir as complete.
func finish(dir string) error {
	if err := os.Remove(unfinished(dir)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// syncDir makes the creation and removal of files in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
