package plane

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr puts the plane into a process group of its own, so that a
// terminal's Ctrl-C does not reach it.
func sysProcAttr(o Options) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if o.DieWithParent {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}

// exitNotice returns a function that waits, without a thread, until the
// process has ended (true) or leave is called (false).
func exitNotice(pid int) (wait func() bool, leave func(), err error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	leave = sync.OnceFunc(func() { f.Close() })
	conn, err := f.SyscallConn()
	if err != nil {
		leave()
		return nil, nil, err
	}
	return func() bool {
		defer leave()
		ended := false
		err := conn.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			ended = n > 0
			return ended || err != nil && !errors.Is(err, unix.EINTR)
		})
		return err == nil && ended
	}, leave, nil
}

// limitFiles bounds the open files of a process. Errors are ignored: the process
// has ended, or this process may not set the bound.
func limitFiles(pid int, most uint64) {
	_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil)
}
