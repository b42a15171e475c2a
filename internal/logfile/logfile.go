// Package logfile bounds the log of a process that goes on appending to it
// through a descriptor of its own (decision 003). Whoever starts a process
// bounds its log, and nobody else does.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Bound copies a log over limit bytes to NAME.1, where kept old ones stay as
// NAME.1 to NAME.kept, and empties it. A line that is written between the copy
// and the cut is lost, which a log can bear and data could not. A log that is
// not there is within its bounds.
func Bound(path string, limit int64, kept int) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Size() <= limit {
		return err
	}
	for i := kept; i > 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", path, i-1), fmt.Sprintf("%s.%d", path, i))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := copyTo(path+".1", path); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

func copyTo(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
