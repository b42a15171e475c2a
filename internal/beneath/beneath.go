// Package beneath opens files in a directory in which a less trusted process writes.
//
// Each name is resolved below the directory without following a symbolic link in any part of it. It opens
// regular files only, and sockets where a caller asks for one: a pipe or a device under the name is an error and does
// not block the caller. Readers give a limit, since the other process chooses the size.
//
// Hosting, packages plane and backup, and the command line use it for the directories of customers' planes. It imports
// nothing of Atoll.
package beneath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrKind is the error of a name under which something else than the expected kind of file is.
var ErrKind = errors.New("it is a link, or no file of the expected kind")

// ErrTooLarge is the error of a file that has more bytes than the reader takes.
var ErrTooLarge = errors.New("the file is too large")

// Open opens a regular file below dir for reading. The name may have several parts.
func Open(dir, name string) (*os.File, error) { return OpenFile(dir, name, os.O_RDONLY, 0) }

// OpenFile opens a regular file below dir, with flags and permissions as os.OpenFile takes them. It truncates only a
// regular file.
func OpenFile(dir, name string, flags int, perm fs.FileMode) (*os.File, error) {
	f, err := open(dir, name, flags&^os.O_TRUNC|syscall.O_NONBLOCK, perm)
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrKind
	}
	if err == nil && flags&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, pathError(dir, name, err)
	}
	return f, nil
}

// Read returns the content of a regular file below dir that has at most limit bytes.
func Read(dir, name string, limit int64) ([]byte, error) {
	f, err := Open(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	return content, nil
}

// List returns the names in a directory below dir, at most limit of them.
func List(dir, name string, limit int) ([]string, error) {
	f, err := open(dir, name, syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(limit + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil && len(names) > limit {
		err = fmt.Errorf("%w: more than %d entries", ErrTooLarge, limit)
	}
	if err != nil {
		return nil, pathError(dir, name, err)
	}
	return names, nil
}

func pathError(dir, name string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.ENXIO) {
		err = fmt.Errorf("%w: %w", ErrKind, err) // a link, a link that leads outside, a pipe or socket
	}
	return &fs.PathError{Op: "open", Path: filepath.Join(dir, name), Err: err}
}
