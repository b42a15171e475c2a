package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Spec describes how one process of the region is run.
type Spec struct {
	Name    string
	Args    []string // Args[0] is the binary
	Env     []string // added to a small fixed environment
	Dir     string   // working directory; "" is the home
	Address string   // where it serves, for people
	Ports   []int    // loopback ports that it alone will listen on
	User    *syscall.Credential

	SharedPorts []int // loopback ports that it and other replicas will listen on

	After   []string                    // processes that must be ready before the first start
	Prepare func(context.Context) error // before each start; idempotent
	Ready   func(context.Context) error // nil when it serves
	Finish  func(context.Context) error // once it serves, before others may count on it; idempotent
	Stop    syscall.Signal              // asks it to stop; it is killed after stopTimeout
	Phase   int                         // `down` stops lower phases first
}

// stopTimeout is how long a process may take over an orderly stop.
const stopTimeout = 5 * time.Second

// killTimeout is how long a process may take to end after SIGKILL: one that writes to a slow disk ends only afterwards.
const killTimeout = 30 * time.Second

// Record is the state of a process, saved in run/NAME.json.
type Record struct {
	Name  string   `json:"name"`
	PID   int      `json:"pid"`
	Start uint64   `json:"start"` // clock ticks after boot
	Boot  string   `json:"boot"`
	Args  []string `json:"args"`
	// Invocation is Spec.invocationID, "" in a record of an earlier program.
	Invocation string    `json:"invocation,omitempty"`
	Binary     string    `json:"binary"` // what file it runs: device, inode, time
	Started    time.Time `json:"started"`
	Restarts   int       `json:"restarts"`
	Backoff    string    `json:"backoff,omitempty"` // why it is not running, when it is not
	Address    string    `json:"address,omitempty"`
	Phase      int       `json:"phase"`
	Stop       int       `json:"stop"`
	Programs   *Binaries `json:"programs,omitempty"` // of the supervisor: what it starts
}

func (h Home) recordPath(name string) string { return h.Path("run", name+".json") }

func (h Home) readRecord(name string) (Record, bool) {
	var r Record
	data, err := os.ReadFile(h.recordPath(name))
	if err != nil || json.Unmarshal(data, &r) != nil {
		return Record{}, false
	}
	return r, true
}

// readRecords reads all records, by name.
func (h Home) readRecords() []Record {
	paths, _ := filepath.Glob(h.Path("run", "*.json"))
	var rs []Record
	for _, p := range paths {
		if r, ok := h.readRecord(strings.TrimSuffix(filepath.Base(p), ".json")); ok {
			rs = append(rs, r)
		}
	}
	return rs
}

// logPath is where a process writes its log.
func (h Home) logPath(name string) string { return h.Path("logs", name+".log") }

// start launches the process in a session of its own, so that it outlives its
// supervisor and no terminal's Ctrl-C reaches it.
func (h Home) start(homeID string, s Spec, restarts int) (Record, *exec.Cmd, error) {
	if port := s.firstTakenPort(isPortFree); port != 0 {
		return Record{}, nil, fmt.Errorf("%s: port %d is taken by %s", s.Name, port, portHolder(port))
	}
	log, err := os.OpenFile(h.logPath(s.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return Record{}, nil, fmt.Errorf("%s: log: %w", s.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Dir = s.Dir
	if cmd.Dir == "" {
		cmd.Dir = h.Dir
	}
	cmd.Env = append(append(baseEnv(), s.Env...), markVariable+"="+homeID+"/"+s.Name)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.User}
	if err := cmd.Start(); err != nil {
		return Record{}, nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	st, err := readStat(cmd.Process.Pid)
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return Record{}, nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return Record{
		Name: s.Name, PID: cmd.Process.Pid, Start: st.start, Boot: bootID(), Args: s.Args, Invocation: s.invocationID(),
		Binary: binaryID(s.Args[0]), Started: time.Now().UTC(), Restarts: restarts, Address: s.Address, Phase: s.Phase,
		Stop: int(s.Stop),
	}, cmd, nil
}

// baseEnv is the environment that every process gets. Nothing of the shell that ran `up` is in it, so that
// the shell does not change how a region behaves. Tests set GOCOVERDIR and GORACE.
func baseEnv() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TZ=UTC"}
	for _, name := range []string{"HOME", "USER", "TMPDIR", "GOCOVERDIR", "GORACE"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// binaryID returns a text that changes when the file at path is replaced.
func binaryID(path string) string {
	full, err := exec.LookPath(path)
	if err != nil {
		return ""
	}
	info, err := os.Stat(full)
	if err != nil {
		return ""
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%x:%x:%x", st.Dev, st.Ino, info.ModTime().UnixNano())
}

// hasInvocation reports whether the recorded process has the arguments and variables of s.
func (r Record) hasInvocation(s Spec) bool {
	if r.Invocation == "" {
		return slices.Equal(r.Args, s.Args)
	}
	return r.Invocation == s.invocationID()
}

// matches reports whether the recorded process is the one that s would start now: the same program,
// arguments and variables.
func (r Record) matches(s Spec) bool {
	return r.hasInvocation(s) && r.Binary == binaryID(s.Args[0])
}

// stop sends the process its stop signal, waits, and kills it when it has not ended after
// stopTimeout.
func (r Record) stop(ctx context.Context) error {
	if !r.isAlive() {
		return nil
	}
	exited := make(chan error, 1)
	go func() { exited <- waitExit(r.PID) }()
	sig := syscall.Signal(r.Stop)
	if sig == 0 {
		sig = syscall.SIGTERM
	}
	if err := r.signal(sig); err != nil {
		return err
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case err := <-exited:
		return err
	case <-timer.C:
	case <-ctx.Done():
	}
	if err := r.signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case err := <-exited:
		return err
	case <-time.After(killTimeout):
		return fmt.Errorf("%s (pid %d) still runs after SIGKILL; see its log and `ps`", r.Name, r.PID)
	}
}
