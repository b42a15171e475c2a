package drill

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Machine is the room that a machine has for a scratch plane.
type Machine struct {
	Memory int64   // bytes that it can give to another process
	Load   float64 // the load average of the last minute, divided by the number of processors
}

// ReadMachine reads the present Machine from the kernel.
func ReadMachine() (m Machine, err error) {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, fmt.Errorf("the memory of this machine: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return m, fmt.Errorf("the memory of this machine: %w", err)
			}
			m.Memory = kib << 10
		}
	}
	if content, err = os.ReadFile("/proc/loadavg"); err != nil {
		return m, fmt.Errorf("the load of this machine: %w", err)
	}
	first, _, ok := strings.Cut(string(content), " ")
	if !ok || m.Memory == 0 {
		return m, errors.New("/proc/meminfo or /proc/loadavg has no value of the memory or load of this machine")
	}
	load, err := strconv.ParseFloat(first, 64)
	m.Load = load / float64(runtime.NumCPU())
	return m, err
}
