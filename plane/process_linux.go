package plane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

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

// notice is a pidfd: it names one process, also after the kernel has given the process's id to another one.
type notice struct {
	file  *os.File
	conn  syscall.RawConn
	leave func() // closes the pidfd; wait returns false
}

func openNotice(pid int) (*notice, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	n := &notice{file: os.NewFile(uintptr(fd), "pidfd")}
	n.leave = sync.OnceFunc(func() { n.file.Close() })
	if n.conn, err = n.file.SyscallConn(); err != nil {
		n.leave()
		return nil, err
	}
	return n, nil
}

// wait waits, without a thread, until the process has ended (true) or leave is called (false).
func (n *notice) wait() bool {
	defer n.leave()
	ended := false
	err := n.conn.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = ready > 0
		return ended || err != nil && !errors.Is(err, unix.EINTR)
	})
	return err == nil && ended
}

// signal sends a signal. It returns nil for a process that has ended.
func (n *notice) signal(s syscall.Signal) error {
	var sent error
	if err := n.conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return nil // wait has noticed the end and closed the pidfd
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// limitFiles bounds the open files of a process. Errors are ignored: the process
// has ended, or this process may not set the bound.
func limitFiles(pid int, most uint64) {
	_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil)
}

// KillStrays ends the processes among these that were started as the plane of a directory, whatever its lock says, and
// those that isOurs reports. It signals through a descriptor that was open before the process was examined. It does not
// wait for the end.
func KillStrays(dir string, pids []int, isOurs func(pid int) bool) error {
	var errs []error
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if isOurs(pid) || servesFrom(pid, dir) {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("plane %s: ending process %d: %w", dir, pid, err))
			}
		}
		unix.Close(fd)
	}
	return errors.Join(errs...)
}

// EndProcesses kills those of some processes that belongs reports, waits until they have ended, and returns their
// number. It signals through a descriptor that was open before the process was examined.
func EndProcesses(pids []int, belongs func(pid int) bool, limit time.Duration) (ended int, err error) {
	until := time.Now().Add(limit)
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if hasEnded(fd, 0) || !belongs(pid) {
			unix.Close(fd)
			continue
		}
		fds = append(fds, fd)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("ending process %d: %w", pid, err)
		}
	}
	for _, fd := range fds {
		if !hasEnded(fd, time.Until(until)) {
			return 0, fmt.Errorf("%d processes do not end after SIGKILL: %v", len(fds), pids)
		}
	}
	return len(fds), nil
}

// hasEnded reports whether all threads of a process end within a time, whether or not its parent has noticed.
func hasEnded(pidfd int, limit time.Duration) bool {
	for until := time.Now().Add(limit); ; {
		wait := max(0, time.Until(until).Milliseconds())
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(wait))
		if !errors.Is(err, unix.EINTR) {
			return ready > 0
		}
	}
}

// servesFrom reports whether a process was started as the plane of a directory. A process writes its command line
// itself, so no other process can change it.
func servesFrom(pid int, dir string) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	line, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return false
	}
	args := strings.Split(string(line), "\x00")
	if len(args) < 4 || args[1] != "serve" || args[2] != "--data-dir" {
		return false
	}
	path := args[3]
	if !filepath.IsAbs(path) {
		path = fmt.Sprintf("/proc/%d/cwd/%s", pid, path)
	}
	theirs, err := os.Stat(path)
	if err != nil {
		return false
	}
	ours, err := os.Stat(dir)
	return err == nil && os.SameFile(theirs, ours)
}
