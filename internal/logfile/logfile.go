// Package logfile bounds the log of a process that appends to it through a descriptor of its own
// (decision 003). The program that starts a process bounds the process's log; no other program may.
//
// The supervisor of a region on one machine and hosting use it. It imports nothing of Atoll.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// LimitSize copies a log of more than limit bytes to NAME.1 and truncates it. Of a log that is much larger
// it copies the last 4 times limit bytes. It keeps the latest copies as NAME.1 to NAME.kept. A line
// that the process writes between the copy and the truncation is lost. A smaller log, or none, is no
// error and stays as it is.
func LimitSize(path string, limit int64, kept int) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Size() <= limit {
		return err
	}
	for i := kept; i > 1; i-- { // without a sync: a crash may lose a part of an old log
		err := os.Rename(fmt.Sprintf("%s.%d", path, i-1), fmt.Sprintf("%s.%d", path, i))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := copyTo(path+".1", path, 4*limit); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

// copyTo copies the last bytes of a file, at most limit. The process whose log it is can make the log as long as it
// likes without writing that much.
func copyTo(to, from string, limit int64) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, io.NewSectionReader(src, max(0, info.Size()-limit), limit))
	return errors.Join(err, dst.Close())
}
