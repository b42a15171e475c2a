package agent

import (
	"os"

	"golang.org/x/sys/unix"
)

// fdatasync flushes the file's content and size to the disk, but not its times: a
// reader after a crash does not need these.
func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
