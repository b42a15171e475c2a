package agent

import (
	"os"

	"golang.org/x/sys/unix"
)

// fdatasync flushes what a reader after a crash needs; not the times.
func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }
