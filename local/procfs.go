package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// markVariable is in the environment of every process that a supervisor
// starts, with the value HOME-ID/NAME. It is there from exec on, so a process
// whose supervisor died before it could write a record is found all the same.
const markVariable = "ATOLL_PROCESS"

// pidStat has the fields of /proc/PID/stat that identify a process.
type pidStat struct {
	parent int
	state  byte   // R, S, D, Z, ...
	start  uint64 // clock ticks after boot; with the pid it names a process for good
}

func readStat(pid int) (pidStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return pidStat{}, err
	}
	// The command, field 2, is in parentheses and may hold anything.
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, ')'):], []byte(") "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 20 {
		return pidStat{}, fmt.Errorf("/proc/%d/stat: unexpected form", pid)
	}
	parent, _ := strconv.Atoi(fields[1])
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return pidStat{parent: parent, state: fields[0][0], start: start}, err
}

// bootID differs after each boot of the machine, when pids and start times
// begin anew.
var bootID = sync.OnceValue(func() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
})

// isAlive reports whether the recorded process runs: the same pid with the same start time since the same
// boot. A zombie does not count.
func (r Record) isAlive() bool {
	if r.PID == 0 || r.Boot != bootID() {
		return false
	}
	st, err := readStat(r.PID)
	return err == nil && st.start == r.Start && st.state != 'Z'
}

// markedProcesses finds the processes of this home by their mark and returns their pids by name.
// For a process whose children have the same mark it returns the parent.
func markedProcesses(homeID string) map[string]int {
	found := map[string]int{}
	prefix := []byte(markVariable + "=" + homeID + "/")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	byPID := map[int]string{}
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		for v := range bytes.SplitSeq(environment(pid), []byte{0}) {
			if name, ok := bytes.CutPrefix(v, prefix); ok {
				if st, err := readStat(pid); err == nil && st.state != 'Z' {
					byPID[pid] = string(name)
				}
			}
		}
	}
	for pid, name := range byPID {
		if st, err := readStat(pid); err == nil && byPID[st.parent] != name {
			found[name] = pid
		}
	}
	return found
}

// environment returns the environment of a process, as /proc shows it. It returns nil for a process that has none, has
// ended, or may not be read.
//
// While a process executes a program (execve), the kernel shows its environment empty or cut. A process that the
// supervisor has just started, or the child of one, would then appear to have no mark, and "down" would leave it. So
// environment reads again until the environment is complete, for at most 10 s.
func environment(pid int) []byte {
	dir := fmt.Sprintf("/proc/%d", pid)
	var before []byte
	emptyReads := 0
	for end := time.Now().Add(10 * time.Second); emptyReads < 10 && time.Now().Before(end); {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			return nil
		}
		// A program may have written its title there, so that it does not end in a zero byte.
		if len(env) > 0 && (env[len(env)-1] == 0 || bytes.Equal(env, before)) {
			return env
		}
		before = env
		if _, err := os.Readlink(dir + "/exe"); err != nil { // a kernel thread or a zombie
			return nil
		}
		// A process with an empty environment has arguments. One that executes a program shows none.
		if args, _ := os.ReadFile(dir + "/cmdline"); len(env) == 0 && len(args) > 0 {
			emptyReads++
		}
		time.Sleep(time.Millisecond) // longer than most calls of execve; a busy loop would take the processor from it
	}
	return nil
}

// waitExit returns when the process has ended. The process need not be a child of this one.
func waitExit(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watching pid %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// signal sends sig to exactly this process; it does nothing when the process has ended.
func (r Record) signal(sig syscall.Signal) error {
	if !r.isAlive() {
		return nil
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("signalling %s: %w", r.Name, err)
	}
	defer unix.Close(fd)
	if !r.isAlive() { // the pid was reused before the descriptor was open
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signalling %s: %w", r.Name, err)
	}
	return nil
}

// residentBytes is the memory of a process; of PostgreSQL also that of the
// processes that it forked, with memory that they share counted once.
func residentBytes(name string, pid int) int64 {
	pids := []int{pid}
	if name == postgresName {
		pids = append(pids, childrenOf(pid)...)
	}
	total, shared := int64(0), int64(0)
	for _, p := range pids {
		anon, file, shmem := residentMemory(p)
		total += anon
		if p == pid {
			total += file
		}
		shared = max(shared, shmem)
	}
	return total + shared
}

// proportionalBytes returns the memory of a process, with shared memory divided among the processes
// that share it; 0 when the kernel does not report it.
func proportionalBytes(pid int) int64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
			kb, _ := strconv.ParseInt(fields[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}

func childrenOf(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for f := range strings.FieldsSeq(string(data)) {
			if p, err := strconv.Atoi(f); err == nil {
				pids = append(pids, p)
			}
		}
	}
	return pids
}

func residentMemory(pid int) (anon, file, shmem int64) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "RssAnon:":
			anon = kb << 10
		case "RssFile:":
			file = kb << 10
		case "RssShmem:":
			shmem = kb << 10
		}
	}
	return anon, file, shmem
}
