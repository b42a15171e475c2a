package plane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a plane that runs.
type Process struct {
	Config  Config
	PID     int
	Adopted bool // it ran already

	exited chan struct{} // closed when it ended; nil when adopted
	tail   *tailBuffer   // of what it wrote; read after exited is closed
}

// Options say how a plane is started.
type Options struct {
	Output io.Writer // of the process; default none
	// DieWithParent ends the plane when the thread that started it ends: for
	// tests. The starting goroutine must be locked to a thread that lives on.
	DieWithParent bool
}

// pollEvery is how often a file or process that gives no notice is looked at.
const pollEvery = 20 * time.Millisecond

// ErrExited is the error of a plane that ended before it was ready.
var ErrExited = errors.New("the plane ended")

// Start returns the plane's process: the one that runs already, or a new one.
// It does not wait until it is ready.
func Start(c Config, o Options) (*Process, error) {
	if pid, ok := Running(c.Dir); ok {
		return &Process{Config: c, PID: pid, Adopted: true}, nil
	}
	cmd := c.Command()
	tail := &tailBuffer{}
	var output io.Writer = tail
	if o.Output != nil {
		output = io.MultiWriter(o.Output, tail)
	}
	cmd.Stdout, cmd.Stderr = output, output // the same writer: one goroutine copies
	cmd.SysProcAttr = sysProcAttr(o.DieWithParent)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting plane %s: %w", c.Dir, err)
	}
	p := &Process{Config: c, PID: cmd.Process.Pid, exited: make(chan struct{}), tail: tail}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait()
	}()
	return p, nil
}

// Running returns the process that holds the data directory.
func Running(dir string) (pid int, ok bool) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
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
	return pid, err == nil && pid > 1
}

// Wait returns when the plane is ready.
func (p *Process) Wait(ctx context.Context) error {
	for {
		err := p.Config.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for a plane: %w", err)
		case <-p.exited: // never for an adopted one
			return fmt.Errorf("plane %s: %w: %s", p.Config.Dir, ErrExited, strings.TrimSpace(p.tail.String()))
		case <-time.After(pollEvery):
		}
		if _, ok := Running(p.Config.Dir); p.Adopted && !ok {
			return fmt.Errorf("plane %s: %w", p.Config.Dir, ErrExited)
		}
	}
}

// Stop ends the plane: politely, and by force when ctx ends first. A plane
// that does not run is stopped.
func (p *Process) Stop(ctx context.Context) error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stopping plane %s: %w", p.Config.Dir, err)
	}
	for p.alive() {
		select {
		case <-ctx.Done():
			return p.Kill()
		case <-p.exited:
			return nil
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// Kill ends the plane at once.
func (p *Process) Kill() error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing plane %s: %w", p.Config.Dir, err)
	}
	for p.alive() {
		select {
		case <-p.exited:
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// alive says whether this very process still runs: a pid may have passed on
// to a stranger, the lock cannot.
func (p *Process) alive() bool {
	if p.exited != nil {
		select {
		case <-p.exited:
			return false
		default:
			return true
		}
	}
	pid, ok := Running(p.Config.Dir)
	return ok && pid == p.PID
}

// tailBuffer keeps the end of what is written, for the reason of a death.
type tailBuffer struct{ b bytes.Buffer }

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.b.Write(b)
	if extra := t.b.Len() - 8192; extra > 0 {
		t.b.Next(extra)
	}
	return len(b), nil
}

func (t *tailBuffer) String() string { return t.b.String() }
