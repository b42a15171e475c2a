package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// tempPrefix names files that are being written. One that a crash left behind
// is swept when it is older than tempAge.
const (
	tempPrefix = ".tmp-"
	tempAge    = time.Hour
)

// writeFile replaces path with data so that a crash at any instruction leaves
// either the old content or the new, on disk.
func writeFile(path string, data []byte, perm fs.FileMode) error {
	tmp, err := writeTemp(filepath.Dir(path), data, perm)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

// createFile is writeFile for a file that must not exist yet. Of any number of
// concurrent calls one succeeds; the others get an error that is fs.ErrExist
// and find the winner's complete content.
func createFile(path string, data []byte, perm fs.FileMode) error {
	tmp, err := writeTemp(filepath.Dir(path), data, perm)
	if err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	// A link, not a rename: it refuses to replace what is there.
	err = errors.Join(os.Link(tmp, path), os.Remove(tmp))
	if err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func writeTemp(dir string, data []byte, perm fs.FileMode) (name string, err error) {
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// sweepTemp removes what writers that were killed left in dir.
func sweepTemp(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), tempPrefix) || time.Since(info.ModTime()) < tempAge {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
