// Package atomicfile writes whole files: after a crash at any instruction a file
// has either its old content or its new content, and the new one once the call
// has returned.
//
// Each function writes a temporary file beside the target, syncs it, gives it the
// target's name and syncs the directory. A writer that is killed may leave its
// temporary file; SweepTemp removes such files.
//
// Every package that stores something in files uses this package; it imports
// none of ours.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"atoll.dev/internal/filelock"
)

const (
	// TempPrefix begins the names of temporary files.
	TempPrefix = ".tmp-"
	// tempAge is the age after which SweepTemp removes a temporary file: its writer was killed.
	tempAge = time.Hour
)

// Write replaces the file at path, or creates it, with these permissions whatever
// the umask says. A symbolic link at path is replaced, not followed.
func Write(path string, data []byte, perm fs.FileMode) error {
	f, err := New(path, perm)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), f.Abort())
	}
	if err := f.Replace(); err != nil {
		return err
	}
	return f.Close()
}

// Rewrite is Write for a file that has one writer at a time. The temporary file is PATH.tmp, so a killed writer leaves
// at most that one, and the next call overwrites it: the directory needs no SweepTemp.
func Rewrite(path string, data []byte, perm fs.FileMode) error {
	opened, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, perm)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	f := &File{opened, path}
	if _, err := f.Write(data); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), f.Close())
	}
	if err := f.Replace(); err != nil {
		return err
	}
	return f.Close()
}

// Create creates a file that must not exist yet. Of any number of concurrent calls
// one succeeds. The others return an error that is fs.ErrExist, and then the file
// has the complete content of the successful call.
func Create(path string, data []byte, perm fs.FileMode) error {
	f, err := New(path, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Link(f.Name(), path) // a link, since a rename would replace an existing file
	}
	if err = errors.Join(err, f.Abort()); err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// Change replaces the content of a file by the result of change, which gets the present content. It locks the file's
// directory meanwhile, so that of several processes that change the file at the same time each sees the result of the
// one before. An error of change leaves the file as it is.
func Change(path string, perm fs.FileMode, change func([]byte) ([]byte, error)) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	unlock, err := filelock.WaitFile(dir)
	if err != nil {
		return err
	}
	defer unlock()
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if content, err = change(content); err != nil {
		return err
	}
	return Write(path, content, perm)
}

// File is the temporary file of a target. The caller writes it and ends with
// Replace or Abort.
type File struct {
	*os.File
	path string
}

// New creates the temporary file of a target, with these permissions.
func New(path string, perm fs.FileMode) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), TempPrefix)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	t := &File{f, path}
	if err := f.Chmod(perm); err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", path, err), t.Abort())
	}
	return t, nil
}

// Replace puts the temporary file in the place of the target, on disk. The file
// stays open. After an error the target has its old content, unless only the sync
// of the directory failed, and the file is closed.
func (f *File) Replace() error {
	if err := f.Sync(); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", f.path, err), f.Abort())
	}
	if err := os.Rename(f.Name(), f.path); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", f.path, err), f.Abort())
	}
	if err := SyncDir(filepath.Dir(f.path)); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", f.path, err), f.Close())
	}
	return nil
}

// Abort closes and removes the temporary file.
func (f *File) Abort() error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// SyncDir makes the names in a directory durable. It does nothing for a directory
// that the process may not read, and on file systems that cannot sync directories.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = d.Sync(); errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// SweepTemp removes temporary files that killed writers left in a directory: those
// older than an hour.
func SweepTemp(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), TempPrefix) || time.Since(info.ModTime()) < tempAge {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
