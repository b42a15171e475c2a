package supervisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"atoll.dev/node"
)

// Limits of processes and threads. A process that is refused at a limit gets EAGAIN; no process is ended. The inner
// limits are smaller, so a fork bomb ends at its own pod, all pods together leave the node's programs their share, and
// all nodes together leave half of the machine's to others.
const (
	processesOfPod  = 1024 // of each pod
	processesOfPods = 4096 // of all pods of a node together
	// A node's own programs have some hundred threads, and for each pod a shim of containerd, which is outside of the
	// pod and has about twelve.
	processesOfPrograms = 512
	processesOfShim     = 16
)

// limitsOf returns the limits of the cgroup of a node on a machine. All nodes together leave a quarter of the machine's
// memory to planes, services and the operator: a node's own programs have no limit of memory, and pods of several nodes
// may be promised more than the machine has.
func limitsOf(r node.Resources, m machineSize) cgroupLimits {
	return cgroupLimits{milliCPU: r.CPU.MilliValue(), allProcesses: m.processes / 2,
		allMemory: m.memory / 4 * 3,
		processes: processesOfPods + processesOfPrograms + processesOfShim*int64(r.Pods)}
}

// readMaxProcesses returns how many processes and threads the kernel permits, as kubelet counts them.
func readMaxProcesses() (int64, error) {
	var least int64
	for _, path := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}
