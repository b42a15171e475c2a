package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// WriteMany writes files below dir, by their paths relative to it, and makes the
// directories that they need. After a crash each file has either its old content or
// its new content. With an error some may be new and others old; no temporary file is
// left. A writer that is killed may leave temporary files and directories, for which
// IsTemp is true.
//
// It syncs the whole file system twice instead of each file and its directory, and it
// writes files of a missing directory under their own names into a temporary one,
// which it renames: tens of thousands of new files take seconds and not minutes.
func WriteMany(dir string, files map[string][]byte, perm fs.FileMode) (err error) {
	if len(files) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b := batch{dir: dir, files: files, perm: perm, isDir: map[string]bool{".": true}, staged: map[string]string{}}
	defer func() { err = errors.Join(err, b.removeTemp()) }()
	paths := slices.Sorted(maps.Keys(files)) // neighbours of a directory are neighbours on the disk too
	targets := make([]string, len(paths))
	for i, path := range paths {
		if targets[i], err = b.prepareTarget(filepath.Clean(path)); err != nil {
			return fmt.Errorf("writing %s: %w", filepath.Join(dir, path), err)
		}
	}
	if err := b.writeAll(paths, targets); err != nil {
		return err
	}
	if err := syncFileSystem(dir); err != nil {
		return err
	}
	for _, m := range b.moves {
		if err := os.Rename(m.from, m.to); err != nil {
			return fmt.Errorf("writing %s: %w", m.to, err)
		}
	}
	return syncFileSystem(dir)
}

// batch is the work of one WriteMany.
type batch struct {
	dir    string
	files  map[string][]byte
	perm   fs.FileMode
	isDir  map[string]bool   // existing directories, below dir
	staged map[string]string // where a missing directory below dir is written
	moves  []move
	temp   []string // files and directories to remove in the end
}

// move gives a staged file or directory its name.
type move struct{ from, to string }

// prepareTarget returns the file that the content of a path is written to, and makes the
// directory of that file. A move will give the file its name.
func (b *batch) prepareTarget(path string) (string, error) {
	parent := filepath.Dir(path)
	exists, err := b.exists(parent)
	if err != nil {
		return "", err
	}
	if !exists {
		staged, err := b.stage(parent)
		return filepath.Join(staged, filepath.Base(path)), err
	}
	f, err := os.CreateTemp(filepath.Join(b.dir, parent), TempPrefix)
	if err != nil {
		return "", err
	}
	b.temp = append(b.temp, f.Name())
	b.moves = append(b.moves, move{f.Name(), filepath.Join(b.dir, path)})
	return f.Name(), f.Close()
}

// exists reports whether a directory below dir was there before the call of WriteMany.
func (b *batch) exists(below string) (bool, error) {
	if is, known := b.isDir[below]; known {
		return is, nil
	}
	above, err := b.exists(filepath.Dir(below))
	if err != nil || !above {
		return false, err
	}
	info, err := os.Stat(filepath.Join(b.dir, below))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.isDir[below] = false
		return false, nil
	case err == nil && !info.IsDir():
		err = &fs.PathError{Op: "mkdir", Path: filepath.Join(b.dir, below), Err: unix.ENOTDIR}
	}
	b.isDir[below] = err == nil
	return err == nil, err
}

// stage makes the directory that the files of a missing directory below dir are written
// to. The topmost missing directory lies in a temporary one beside its place.
func (b *batch) stage(below string) (string, error) {
	if staged, done := b.staged[below]; done {
		return staged, nil
	}
	parent := filepath.Dir(below)
	exists, err := b.exists(parent)
	if err != nil {
		return "", err
	}
	var staged string
	if exists {
		temp, err := os.MkdirTemp(filepath.Join(b.dir, parent), TempPrefix)
		if err != nil {
			return "", err
		}
		staged = filepath.Join(temp, filepath.Base(below))
		b.temp = append(b.temp, temp)
		b.moves = append(b.moves, move{staged, filepath.Join(b.dir, below)})
	} else {
		above, err := b.stage(parent)
		if err != nil {
			return "", err
		}
		staged = filepath.Join(above, filepath.Base(below))
	}
	b.staged[below] = staged
	return staged, os.Mkdir(staged, 0o755)
}

// writeAll writes the content of each path to its target, several at once.
func (b *batch) writeAll(paths, targets []string) error {
	writers := runtime.GOMAXPROCS(0)
	share := (len(paths) + writers - 1) / writers
	var group errgroup.Group
	for begin := 0; begin < len(paths); begin += share {
		group.Go(func() error {
			for i := begin; i < min(begin+share, len(paths)); i++ {
				if err := writeFile(targets[i], b.files[paths[i]], b.perm); err != nil {
					return fmt.Errorf("writing %s: %w", filepath.Join(b.dir, paths[i]), err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// writeFile writes a staged file, with these permissions whatever the umask says. It
// does not sync it.
func writeFile(path string, data []byte, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(perm), f.Close())
}

// removeTemp removes the temporary files that were not moved to their place.
func (b *batch) removeTemp() error {
	var failed []error
	for _, path := range b.temp {
		failed = append(failed, os.RemoveAll(path))
	}
	return errors.Join(failed...)
}

// IsTemp reports whether a name is that of a temporary file or directory of this
// package.
func IsTemp(name string) bool {
	digits, found := strings.CutPrefix(name, TempPrefix)
	return found && digits != "" && strings.Trim(digits, "0123456789") == ""
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
