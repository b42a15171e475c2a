package plane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/beneath"
)

// Process is a running plane.
type Process struct {
	Config  Config
	PID     int
	Adopted bool // this process did not start it

	exited chan struct{} // closed when it has ended
	notice *notice       // nil on a system without pidfd
	leave  func()        // stops watching an adopted process
	output func() string // returns the end of its output
}

// Options are the parameters of the start of a plane.
type Options struct {
	Output  io.Writer // of the process; default none. It ends with this process
	LogFile string    // or: a file that the process itself appends to, for planes that outlive us
	Env     []string  // besides our own environment
	// MaxFiles bounds the files and connections that the plane may have open;
	// default: the bound of this process.
	MaxFiles uint64
	// DieWithParent ends the plane when the thread that started it ends: for
	// tests. The starting goroutine must be locked to a thread that lives on.
	DieWithParent bool
	// Walls are those that FindWalls has found for the binary.
	Walls Walls
}

// pollEvery is the interval between two looks at a file or process that sends no
// notification.
const pollEvery = 5 * time.Millisecond

// lockTimeout bounds the time from a plane's start by another process until it has
// locked its directory.
const lockTimeout = 30 * time.Second

// ErrExited is the error of a plane that ended before it was ready.
var ErrExited = errors.New("the plane ended")

// ErrUnnamed is the error of a plane whose process exists and has not locked the directory. KillStrays ends it.
var ErrUnnamed = errors.New("another process has started it, and it has not locked its directory")

// Start returns the plane's running process, or starts a new one. It does not wait
// until the plane is ready. The process outlives ctx: the end of ctx ends only the wait
// of Adopt.
//
// From the fork on until the process ends, the file "process" in the plane's
// directory is locked through a descriptor that the process inherits. So the next
// starter finds the process even if this one dies between the fork and the plane's
// own lock.
func Start(ctx context.Context, c Config, o Options) (*Process, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
	}
	for {
		p, err := Adopt(ctx, c, o)
		if p != nil || err != nil {
			return p, err
		}
		held, err := lockProcessFile(c.Dir)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // another process was faster
		}
		if err != nil {
			return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
		}
		defer held.Close()
		return launch(c, o, held)
	}
}

// Adopt returns the process of a plane that runs already, nil when none does. While
// the process has not locked its directory yet, Adopt waits: at most lockTimeout,
// and until ctx ends. Of the options it uses LogFile.
func Adopt(ctx context.Context, c Config, o Options) (*Process, error) {
	poll := time.NewTicker(pollEvery) // a lock sends no notification
	defer poll.Stop()
	timeout := time.NewTimer(lockTimeout)
	defer timeout.Stop()
	for {
		if pid, ok := Running(c.Dir); ok {
			if p := adopt(c, o, pid); p != nil {
				return p, nil
			}
		} else if !Alive(c.Dir) {
			return nil, nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("plane %s: waiting until its process has locked its directory: %w", c.Dir,
				context.Cause(ctx))
		case <-timeout.C:
			return nil, fmt.Errorf("plane %s: %w for %s", c.Dir, ErrUnnamed, lockTimeout)
		}
	}
}

func launch(c Config, o Options, held *os.File) (*Process, error) {
	if err := os.Remove(filepath.Join(c.Dir, "ready")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
	}
	p := &Process{Config: c, exited: make(chan struct{})}
	cmd := c.Command()
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = sysProcAttr(o)
	socket, err := o.Walls.apply(cmd, c.Address)
	if err != nil {
		return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
	}
	defer socket.Close() // the process has a copy
	if o.LogFile != "" {
		log, err := os.OpenFile(o.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		var before int64
		if info, err := log.Stat(); err == nil {
			before = info.Size()
		}
		p.output = func() string { return fileTail(o.LogFile, before) }
	} else {
		tail := &tailBuffer{}
		var output io.Writer = tail
		if o.Output != nil {
			output = io.MultiWriter(o.Output, tail)
		}
		cmd.Stdout, cmd.Stderr = output, output // the same writer: one goroutine copies
		p.output = tail.String
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
	}
	p.PID = cmd.Process.Pid
	if o.MaxFiles > 0 {
		limitFiles(p.PID, o.MaxFiles)
	}
	p.notice, _ = openNotice(p.PID)
	go p.reap(cmd)
	return p, nil
}

// reap waits for the end of a child without blocking a thread.
func (p *Process) reap(cmd *exec.Cmd) {
	defer close(p.exited)
	if p.notice != nil {
		p.notice.wait()
	}
	_ = cmd.Wait()
}

// adopt returns a Process for a running process, and nil when it has just ended.
func adopt(c Config, o Options, pid int) *Process {
	p := &Process{Config: c, PID: pid, Adopted: true, exited: make(chan struct{}), output: func() string { return "" }}
	if o.LogFile != "" {
		p.output = func() string { return fileTail(o.LogFile, 0) }
	}
	notice, err := openNotice(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	var wait func() bool
	if err != nil { // no such notice on this system
		left := make(chan struct{})
		p.leave = sync.OnceFunc(func() { close(left) })
		wait = func() bool {
			for p.holdsDir() {
				select {
				case <-left:
					return false
				case <-time.After(pollEvery):
				}
			}
			return true
		}
	} else {
		if !p.holdsDir() { // the kernel has given the id to another process
			notice.leave()
			return nil
		}
		p.notice, p.leave, wait = notice, notice.leave, notice.wait
	}
	go func() {
		if wait() {
			close(p.exited)
		}
	}()
	return p
}

func (p *Process) holdsDir() bool {
	pid, ok := Running(p.Config.Dir)
	return ok && pid == p.PID
}

// lockProcessFile locks the file "process". The lock shows that a process exists, or is being started.
func lockProcessFile(dir string) (*os.File, error) {
	f, err := beneath.OpenFile(dir, "process", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Alive reports whether a plane's process exists, even before it has locked its
// directory.
func Alive(dir string) bool {
	if _, ok := Running(dir); ok {
		return true
	}
	f, err := beneath.Open(dir, "process")
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Running returns the process that holds the data directory. The file that names it is the plane's word, so the process
// counts only when its command line is that of a plane with this directory: a caller may send signals to it.
func Running(dir string) (pid int, ok bool) {
	f, err := beneath.Open(dir, "lock")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, false // closing releases it
	}
	content, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
	return pid, err == nil && pid > 1 && servesFrom(pid, dir)
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// LastOutput returns the end of the process's output, at most 8 KiB, in which the
// reason of its end stands. For an adopted process it is the end of its log file,
// if that is known.
func (p *Process) LastOutput() string { return strings.TrimSpace(p.output()) }

// Leave stops watching an adopted process, which goes on.
func (p *Process) Leave() {
	if p.leave != nil {
		p.leave()
	}
}

// Wait returns when the plane is ready.
func (p *Process) Wait(ctx context.Context) error {
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for a plane: %w", err)
		case <-p.exited:
			return fmt.Errorf("plane %s: %w: %s", p.Config.Dir, ErrExited, p.LastOutput())
		case <-time.After(pollEvery):
		}
	}
}

// ready is Config.Ready for this process; another process of the plane is not ready.
func (p *Process) ready(ctx context.Context) error {
	r, err := p.Config.Readiness()
	if err != nil {
		return err
	}
	if r.PID != p.PID {
		return fmt.Errorf("plane %s: %w: process %d was, this is %d", p.Config.Dir, ErrNotReady, r.PID, p.PID)
	}
	return p.Config.Ready(ctx)
}

// Stop ends the plane with SIGTERM, and with SIGKILL when ctx ends first. It
// returns nil for a plane that has ended.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping plane %s: %w", p.Config.Dir, err)
	}
	select {
	case <-ctx.Done():
		return p.Kill()
	case <-p.exited:
		return nil
	}
}

// Kill ends the plane at once.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing plane %s: %w", p.Config.Dir, err)
	}
	<-p.exited
	return nil
}

// signal sends a signal to this process only, by its pidfd. Without a pidfd, the lock on the directory shows that the
// kernel has not given the process's id to another one.
func (p *Process) signal(s syscall.Signal) error {
	select {
	case <-p.exited:
		return nil
	default:
	}
	if p.notice != nil {
		return p.notice.signal(s)
	}
	if p.Adopted && !p.holdsDir() {
		return nil
	}
	if err := syscall.Kill(p.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// tailSize is how many bytes of a plane's output are kept for the reason of its
// end.
const tailSize = 8192

// tailBuffer keeps the last tailSize bytes.
type tailBuffer struct{ b bytes.Buffer }

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.b.Write(b)
	if extra := t.b.Len() - tailSize; extra > 0 {
		t.b.Next(extra)
	}
	return len(b), nil
}

func (t *tailBuffer) String() string { return t.b.String() }

// fileTail returns the end of a file without its first before bytes; when the file
// was truncated since, without that exception.
func fileTail(path string, before int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	if before > info.Size() {
		before = 0
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(before, info.Size()-tailSize), tailSize))
	return string(b)
}
