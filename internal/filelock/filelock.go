// Package filelock locks files against other processes, by flock(2).
//
// A lock ends with unlock or with its process, so none is left after a kill. A second lock of the same file in the same
// process waits or fails as that of another process does. The lock is advice: it stops nobody who does not ask for it.
//
// Packages that keep a directory to one process use it. A process that starts while its parent has a lock, and must
// keep the lock, cannot use it: unlock ends the lock for the child, too.
package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked means that somebody else has the lock.
var ErrLocked = errors.New("locked by another process")

const filePerm fs.FileMode = 0o600

// Try locks the file at a path, which it creates if there is none. It fails at once with [ErrLocked] when somebody else
// has the lock.
func Try(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, filePerm)
	if err != nil {
		return nil, err
	}
	return TryFile(f)
}

// Wait is [Try], but waits until nobody else has the lock.
func Wait(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, filePerm)
	if err != nil {
		return nil, err
	}
	return WaitFile(f)
}

// TryFile is [Try] for an open file or directory. The file is closed when TryFile fails, and by unlock.
func TryFile(f *os.File) (unlock func(), err error) { return lock(f, unix.LOCK_EX|unix.LOCK_NB) }

// WaitFile is [Wait] for an open file or directory. The file is closed when WaitFile fails, and by unlock.
func WaitFile(f *os.File) (unlock func(), err error) { return lock(f, unix.LOCK_EX) }

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
		// To close the file is not enough: a child of this process that has not called exec yet has it open, too.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
	}, nil
}
