package credentials

import (
	"bytes"
	"os"
	"path/filepath"
)

// WriteFile replaces a file so that a crash at any instruction leaves the old content or the new, on
// disk, never a mixture. The root module's internal/atomicfile does the same: this module does not require the
// root module, so that the versions of the two modules' dependencies stay independent.
func WriteFile(path string, content []byte, mode os.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // after the rename there is nothing of that name left
	defer temp.Close()
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	if _, err := temp.Write(content); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// replaceFile is WriteFile, but leaves a file alone that has the content already.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	if present, err := os.ReadFile(path); err == nil && bytes.Equal(present, content) {
		return nil
	}
	return WriteFile(path, content, mode)
}

// syncDir makes renames within a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
