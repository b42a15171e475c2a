package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/logfile"
	"atoll.dev/node"
)

// logDir has the logs of programs. It is the directory "log" of the home.
const logDir = "/var/log"

// Bounds of the log of one program.
const (
	logLimit    = 10 << 20 // bytes
	logInterval = time.Minute
)

// A program that ends is started again after a pause, which doubles while it ends again.
const (
	firstPause      = 250 * time.Millisecond
	maxPause        = 10 * time.Second
	pauseResetAfter = time.Minute // a program that ran for longer is restarted after firstPause again
)

// environment is the environment of all programs. They do not inherit the supervisor's.
var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
	"TMPDIR=/tmp", "LANG=C.UTF-8"}

// launcher starts programs from one thread, which is in the node's cgroup namespace, and waits for all processes that
// end, also those whose parents have ended: its process is the first of the process namespace.
type launcher struct {
	calls chan func()

	mu    sync.Mutex
	ended map[int]chan<- unix.WaitStatus
}

func newLauncher() *launcher {
	l := &launcher{calls: make(chan func()), ended: map[int]chan<- unix.WaitStatus{}}
	go func() {
		runtime.LockOSThread() // forever
		for call := range l.calls {
			call()
		}
	}()
	return l
}

// onThread runs a function on the launcher's thread.
func (l *launcher) onThread(call func() error) error {
	result := make(chan error)
	l.calls <- func() { result <- call() }
	return <-result
}

// start starts a program, whose output goes to its log. The channel gets its exit status.
func (l *launcher) start(name string, command []string) (pid int, ended <-chan unix.WaitStatus, err error) {
	log, err := os.OpenFile(filepath.Join(logDir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer none.Close()
	end := make(chan unix.WaitStatus, 1)
	err = l.onThread(func() error {
		l.mu.Lock() // until the process is in the map, its end is not collected
		defer l.mu.Unlock()
		var err error
		pid, err = syscall.ForkExec(command[0], command, &syscall.ProcAttr{Dir: "/", Env: environment,
			Files: []uintptr{none.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}})
		if err == nil {
			l.ended[pid] = end
		}
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return pid, end, nil
}

// reap collects ended processes after each signal.
func (l *launcher) reap(signals <-chan os.Signal) {
	for range signals {
		l.reapNow()
	}
}

// reapNow collects all processes that have ended, and sends the exit status of those that start has started.
func (l *launcher) reapNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
		if end, ours := l.ended[pid]; ours {
			delete(l.ended, pid)
			end <- status
		}
	}
}

// signal sends a signal to a program that has not been collected.
func (l *launcher) signal(pid int, s unix.Signal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, running := l.ended[pid]; running {
		_ = unix.Kill(pid, s)
	}
}

// run runs a program once and waits for its end. An exit status other than 0 is an error.
func (l *launcher) run(name string, command []string) error {
	_, ended, err := l.start(name, command)
	if err != nil {
		return err
	}
	if status := <-ended; status.ExitStatus() != 0 {
		return fmt.Errorf("%s has ended (%s); the log of the node has its output: log/%s.log", name, exitText(status), name)
	}
	return nil
}

// keepRunning runs a program and restarts it with growing pauses until stop is closed. Then it sends SIGTERM and waits
// for the program's end. It reports each start, each end and each failed start.
func (l *launcher) keepRunning(name string, command []string, stop <-chan struct{}, reports chan<- report) {
	state := node.Program{}
	pause := firstPause
	for {
		from := time.Now()
		pid, ended, err := l.start(name, command)
		if err == nil {
			state.PID = pid
			reports <- report{name, state}
			select {
			case status := <-ended:
				state.LastExit = exitText(status)
			case <-stop:
				l.signal(pid, unix.SIGTERM)
				<-ended
				return
			}
		} else {
			state.LastExit = err.Error()
		}
		state.PID = 0
		state.Restarts++
		reports <- report{name, state}
		if time.Since(from) > pauseResetAfter {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-stop:
			return
		}
		pause = min(2*pause, maxPause)
	}
}

func exitText(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// boundLogs shortens the logs of programs to logLimit every logInterval, until stop is closed.
func boundLogs(stop <-chan struct{}) {
	ticker := time.NewTicker(logInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
		files, _ := filepath.Glob(filepath.Join(logDir, "*.log"))
		for _, file := range files {
			_ = logfile.LimitSize(file, logLimit, 1) // the next round tries again
		}
	}
}
