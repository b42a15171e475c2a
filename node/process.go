package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Process is the supervisor that runs the node of a home. The caller closes it.
type Process struct {
	PID  int
	fd   int // a pidfd: the kernel gives the process id to another process, and never the descriptor
	home string
}

// ErrNotRunning is the error of FindProcess when no supervisor runs the node.
var ErrNotRunning = errors.New("no supervisor runs the node")

// errStarting is the error of FindProcess between the supervisor's lock and its status.
var errStarting = errors.New("the supervisor has not written its status yet")

// FindProcess returns the supervisor of a home.
func FindProcess(home string) (*Process, error) {
	running, err := Running(home)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("%s: %w", home, ErrNotRunning)
	}
	status, err := ReadStatus(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", home, errStarting)
	}
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(status.Supervisor, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("%s: %w", home, errStarting)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the supervisor of a node: %w", err)
	}
	p := &Process{PID: status.Supervisor, fd: fd, home: home}
	if !p.holdsLock() { // the status is that of an earlier supervisor
		p.Close()
		return nil, fmt.Errorf("%s: %w", home, errStarting)
	}
	return p, nil
}

// holdsLock reports whether the process has the lock file of the home open.
func (p *Process) holdsLock() bool {
	want, err := filepath.EvalSymlinks(lockFile(p.home))
	if err != nil {
		return false
	}
	dir := filepath.Join("/proc", strconv.Itoa(p.PID), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && target == want {
			return true
		}
	}
	return false
}

// Signal sends a signal. A process that has ended is no error.
func (p *Process) Signal(s unix.Signal) error {
	if err := unix.PidfdSendSignal(p.fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling the supervisor of %s: %w", p.home, err)
	}
	return nil
}

// waitSlice is how long one call of the kernel waits, so that the end of a context is noticed.
const waitSlice = 200 * time.Millisecond

// Wait returns nil when the process has ended, and the error of ctx when that ends before.
func (p *Process) Wait(ctx context.Context) error {
	for {
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(waitSlice/time.Millisecond))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("waiting for the supervisor of %s: %w", p.home, err)
		case err == nil && n > 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// Close releases the descriptor. The process continues.
func (p *Process) Close() { _ = unix.Close(p.fd) }

// stopLimit is how long a supervisor may take to end its node before Stop kills it.
const stopLimit = 20 * time.Second

// Stop ends the supervisor of a home, and the node with it. A home without a supervisor is no error. Stop kills a
// supervisor that does not end in time; `atoll node sweep` then removes what the node has left on the machine.
func Stop(ctx context.Context, home string) error {
	p, err := FindProcess(home)
	for deadline := time.Now().Add(stopLimit); errors.Is(err, errStarting) && time.Now().Before(deadline); {
		time.Sleep(lockPatience / 50)
		p, err = FindProcess(home)
	}
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	err = p.Wait(patience)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.Wait(ctx)
}
