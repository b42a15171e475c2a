package serve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// claim makes the data directory ours: there, private, writable, and locked against every other process until this one
// ends, in whatever way. The lock is the kernel's, on DIR/lock, which also names the holder; it cannot go stale.
func claim(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory cannot be made: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory cannot be made private: %w", err)
	}
	// An earlier process of the plane may have left a link or a pipe under this name.
	const flags = os.O_RDWR | os.O_CREATE | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory is not writable: %w", err)
	}
	if info, err := lock.Stat(); err != nil || !info.Mode().IsRegular() {
		lock.Close()
		return nil, fmt.Errorf("%s is no file: remove it", lock.Name())
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s is in use by process %s", dir, holder(lock))
		}
		return nil, fmt.Errorf("locking data directory %s: %w", dir, err)
	}
	if err := lock.Truncate(0); err != nil {
		lock.Close()
		return nil, fmt.Errorf("data directory is not writable: %w", err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		lock.Close()
		return nil, fmt.Errorf("data directory is not writable: %w", err)
	}
	return func() { lock.Close() }, nil
}

// holder returns the process id that the lock file names.
func holder(lock *os.File) string {
	content := make([]byte, 32)
	n, _ := lock.ReadAt(content, 0)
	if pid := strings.TrimSpace(string(content[:n])); pid != "" {
		return pid
	}
	return "unknown"
}
