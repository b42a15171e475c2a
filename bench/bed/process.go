package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/pause"
	"atoll.dev/internal/postgres"
)

// Process is a server, a broker or PostgreSQL as a process of its own.
type Process interface {
	Start() error // returns when the process serves, at the address that it had before
	Kill()        // sends SIGKILL, and returns when the process has ended
	Pid() int     // 0 while the process does not run
}

// database is the PostgreSQL of a region.
type database struct {
	cluster *postgres.Cluster
	process *postgres.Process // nil while it does not run
}

func (d *database) Start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // crash recovery may take long
	defer cancel()
	d.process, err = d.cluster.Start(ctx, io.Discard)
	return err
}

func (d *database) Kill() {
	if d.process != nil {
		d.process.Kill()
		d.process = nil
	}
}

func (d *database) Pid() int {
	if d.process == nil {
		return 0
	}
	return d.process.PID()
}

// stop shuts PostgreSQL down and waits until it has ended.
func (d *database) stop() error {
	if d.process == nil {
		return nil
	}
	return d.process.Stop()
}

// Memory returns the resident memory of the process with a pid and its highest value so far, in MiB.
func Memory(pid int) (now, most float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	field := func(name string) float64 {
		for l := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(l, name+":"); ok {
				kb, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
				return float64(kb) / 1024
			}
		}
		return 0
	}
	return field("VmRSS"), field("VmHWM"), nil
}

// ProcessorTime returns the processor time that the process with a pid and its children have used. Children that
// have ended count when their parent has waited for them, as PostgreSQL's first process does.
func ProcessorTime(pid int) (time.Duration, error) {
	fields, err := processFields(pid)
	if err != nil {
		return 0, err
	}
	used := ownTime(pid, fields) + ticksOf(fields[13:15])
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		child, _ := strconv.Atoi(filepath.Base(dir))
		if fields, err := processFields(child); err == nil && fields[1] == strconv.Itoa(pid) {
			used += ownTime(child, fields)
		}
	}
	return used, nil
}

// ownTime returns the processor time that a process has used itself. The clock of the process has nanoseconds;
// /proc/PID/stat, whose fields serve where the clock cannot be read, has ticks of 10 ms.
func ownTime(pid int, fields []string) time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &at); err != nil {
		return ticksOf(fields[11:13])
	}
	return time.Duration(at.Nano())
}

// processFields returns the fields of /proc/PID/stat that follow the name: state, parent and so on.
func processFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 15 {
		return nil, errors.New("/proc/PID/stat has too few fields")
	}
	return fields, nil
}

// ticksOf adds up processor times of /proc/PID/stat.
func ticksOf(fields []string) (sum time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100
	for _, field := range fields {
		n, _ := strconv.Atoi(field)
		sum += time.Duration(n) * tick
	}
	return sum
}

// Pause waits; the error is that ctx has ended.
func Pause(ctx context.Context, d time.Duration) error {
	if !pause.For(ctx, d) {
		return ctx.Err()
	}
	return nil
}
