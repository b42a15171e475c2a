package beneath

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A process may hold a lease on its own file: the kernel refuses to open the file until the holder gives the lease up.
func TestALeaseOnAFileBlocksNobody(t *testing.T) {
	dir, _ := world(t)
	fd, err := unix.Open(filepath.Join(dir, "file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("this file system has no leases: %v", err)
	}
	if _, err := Read(dir, "file", 100); !errors.Is(err, ErrKind) {
		t.Errorf("error %v, want %v", err, ErrKind)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir, "file", 100); err != nil || string(got) != "content" {
		t.Errorf("after the lease: %q, %v", got, err)
	}
}

func TestAKernelWithoutOpenat2OpensFilesWithoutLinks(t *testing.T) {
	real := openat2
	defer func() { openat2 = real }()
	for _, answer := range []syscall.Errno{unix.ENOSYS, unix.EPERM} {
		calls := 0
		openat2 = func(int, string, *unix.OpenHow) (int, error) { calls++; return 0, answer }
		t.Run(answer.Error(), func(t *testing.T) {
			t.Run("files", TestFilesAreOpenedWithoutLinks)
			t.Run("sizes", TestTheSizeOfAFileIsLimited)
			t.Run("sockets", TestASocketIsReachedWithoutLinks)
			t.Run("leases", TestALeaseOnAFileBlocksNobody)
		})
		if calls == 0 {
			t.Error("openat2 was not called")
		}
	}
}
