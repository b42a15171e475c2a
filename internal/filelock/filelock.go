// Package filelock locks files against other processes, by flock(2).
//
// A lock ends with unlock or with its process, so none is left after a kill. A second lock of the same file in the same
// process waits or fails as one of another process does. The lock is advisory: a process that does not lock the file
// can read and write it.
//
// Packages that keep a directory to one process use it. A process cannot pass its lock on to a child process: when the
// parent calls unlock, the lock ends for the child, too.
package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked means that the file is locked already, by another process or by this one.
var ErrLocked = errors.New("locked by another process")

const filePerm fs.FileMode = 0o600

// Try locks the file at a path, and creates it if there is none. It fails at once with [ErrLocked] when the file is
// locked already.
func Try(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, filePerm)
	if err != nil {
		return nil, err
	}
	return TryFile(f)
}

// Wait is [Try], but waits while the file is locked already.
func Wait(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, filePerm)
	if err != nil {
		return nil, err
	}
	return WaitFile(f)
}

// TryFile is [Try] for an open file or directory. It closes the file when it fails; otherwise unlock does.
func TryFile(f *os.File) (unlock func(), err error) { return lock(f, unix.LOCK_EX|unix.LOCK_NB) }

// WaitFile is [Wait] for an open file or directory. It closes the file when it fails; otherwise unlock does.
func WaitFile(f *os.File) (unlock func(), err error) { return lock(f, unix.LOCK_EX) }

// lock calls flock(2) with the operation how, again after each interrupting signal. It closes the file when it fails.
func lock(f *os.File, how int) (unlock func(), err error) {
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return func() {
		// Closing the file is not enough: a child process that has not called exec yet still has it open.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
	}, nil
}
