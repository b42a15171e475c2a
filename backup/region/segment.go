package region

import (
	"errors"
	"os"
	"path/filepath"
)

// segmentWriter writes the WAL as the segment files of PostgreSQL.
type segmentWriter struct {
	dir      string
	timeline int32
	size     int64
	at       LSN      // of the next byte
	file     *os.File // nil at the beginning of a segment
}

// write writes the next bytes of the WAL.
func (w *segmentWriter) write(text []byte) error {
	for len(text) > 0 {
		start := segmentStart(w.at, w.size)
		if w.file == nil {
			var err error
			path := filepath.Join(w.dir, segmentFile(w.timeline, start, w.size))
			if w.file, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
				return err
			}
			if err := w.file.Truncate(w.size); err != nil { // PostgreSQL refuses a segment of another size
				return err
			}
		}
		n := min(int(LSN(w.size)-(w.at-start)), len(text))
		if _, err := w.file.WriteAt(text[:n], int64(w.at-start)); err != nil {
			return err
		}
		w.at, text = w.at+LSN(n), text[n:]
		if segmentStart(w.at, w.size) == w.at {
			if err := w.close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// close writes the open segment file to disk and closes it; without an open file it does nothing. A segment that is not
// full ends with zeros.
func (w *segmentWriter) close() error {
	if w.file == nil {
		return nil
	}
	f := w.file
	w.file = nil
	return errors.Join(f.Sync(), f.Close())
}

// abort closes the file after an error.
func (w *segmentWriter) abort() {
	if w.file != nil {
		w.file.Close()
	}
}
