package postgres

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
	"syscall"
	"time"
)

// StopSignal asks a server to stop: it ends its sessions, writes a checkpoint and exits ("fast shutdown").
const StopSignal = syscall.SIGINT

// RunningError is the error of a data directory on which a server already runs.
type RunningError struct{ PID int }

func (e *RunningError) Error() string {
	return fmt.Sprintf("a postgres server already runs here, pid %d", e.PID)
}

// Command returns the server's command, to be run in the foreground as a child after Init and Prepare; stop it with
// StopSignal. Its log goes to stderr, which the caller connects. The server inherits no other open file, and may
// outlive the caller.
func (c *Cluster) Command() (*exec.Cmd, error) {
	a, err := c.fillDefaults()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Binaries.Path("postgres"), "-D", c.DataDir, "-k", c.SocketDir, "-p", strconv.Itoa(c.Port))
	cmd.Dir, cmd.Env, cmd.SysProcAttr = c.DataDir, serverEnvironment(), a.processAttributes()
	cmd.WaitDelay = time.Second // sessions of a killed server hold its stderr until they notice
	return cmd, nil
}

// Prepare makes the data directory ready for a start after any kind of end, kill -9 and power loss included. It
// returns a *RunningError when a server runs on it (adopt that one). Otherwise it waits for the orphaned sessions of a
// dead server, which get SIGQUIT after 0.4 s and SIGKILL after 2 s. Then it removes lock files whose process has ended
// or is another program by now: PostgreSQL itself takes any process with that pid for a running server.
func (c *Cluster) Prepare(ctx context.Context) error {
	if _, err := c.fillDefaults(); err != nil {
		return err
	}
	if pid := c.PID(); pid != 0 {
		return &RunningError{PID: pid}
	}
	for waited := 0; ; waited++ {
		orphans := findProcesses(c.DataDir)
		if len(orphans) == 0 {
			break
		}
		for _, pid := range orphans {
			switch {
			case waited == 20:
				syscall.Kill(pid, syscall.SIGQUIT)
			case waited >= 100:
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the sessions of a dead postgres server: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	for _, lockFile := range []string{filepath.Join(c.DataDir, "postmaster.pid"), c.socket() + ".lock"} {
		if _, err := os.Stat("/proc/self/cwd"); err != nil {
			break // without /proc nothing is known about a pid: leave the decision to PostgreSQL
		}
		if err := os.Remove(lockFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing a stale lock file: %w", err)
		}
	}
	return nil
}

// PID returns the process id of the server that runs on the data directory, 0 when there is none.
func (c *Cluster) PID() int {
	pid := readPID(filepath.Join(c.DataDir, "postmaster.pid"))
	if pid <= 0 || syscall.Kill(pid, 0) != nil || !hasWorkingDir(pid, c.DataDir) {
		return 0
	}
	// A session of a dead server works in the directory, too, and may have got the pid by reuse;
	// only the server has -D.
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil && !bytes.Contains(cmdline, []byte("\x00-D\x00")) {
		return 0
	}
	return pid
}

// readPID returns the number in the first line of a file, 0 when there is none.
func readPID(file string) int {
	data, _ := os.ReadFile(file)
	line, _, _ := strings.Cut(string(data), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(line))
	return pid
}

// hasWorkingDir reports whether dir is the working directory of the process, as it is of each process of
// a server. Without /proc it returns true.
func hasWorkingDir(pid int, dir string) bool {
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		return true
	}
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	real, _ := filepath.EvalSymlinks(dir)
	return err == nil && cwd != "" && (cwd == dir || cwd == real)
}

// findProcesses returns the pids of the PostgreSQL processes whose working directory is dir.
func findProcesses(dir string) (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, f := range found {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && pid != os.Getpid() && isPostgres(pid) && hasWorkingDir(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isPostgres(pid int) bool {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	name := strings.TrimSpace(string(comm))
	return name == "postgres" || name == "postmaster"
}

// Process is a server that this process started.
type Process struct {
	cluster *Cluster
	cmd     *exec.Cmd
	done    chan struct{}
	err     error
}

// Start starts the server, with its log to log, and returns when it answers. It is for tests and benchmarks; a
// supervisor uses Prepare and Command. ctx bounds the start only.
func (c *Cluster) Start(ctx context.Context, log io.Writer) (*Process, error) {
	if err := c.Prepare(ctx); err != nil {
		return nil, err
	}
	cmd, err := c.Command()
	if err != nil {
		return nil, err
	}
	var tail bytes.Buffer
	cmd.Stderr = log
	if log == nil {
		cmd.Stderr = &tail
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting postgres: %w", err)
	}
	p := &Process{cluster: c, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	for {
		if err = c.Ping(ctx); err == nil {
			return p, nil
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("starting postgres: it ended: %w\n%s", p.err, tail.String())
		case <-ctx.Done():
			p.Kill()
			return nil, fmt.Errorf("starting postgres: %w: %w", ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// PID returns the server's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the server has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop shuts the server down and waits until it has ended.
func (p *Process) Stop() error {
	p.cmd.Process.Signal(StopSignal)
	<-p.done
	return p.err
}

// Kill ends the server with SIGKILL, as a crash would, and waits until it has ended. Its sessions end later, by
// themselves.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}
