package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// errHangs is the error of a plane whose process runs and does not answer.
var errHangs = errors.New("the plane does not answer")

// errOutOfMemory is the error of a plane that the kernel has ended.
var errOutOfMemory = errors.New("the plane has used up its memory")

// newFailure finds the reason of a failure from the error and from the last
// output of the plane's process.
func newFailure(err error) *controlplane.Failure {
	fail := func(reason controlplane.FailureReason, message string) *controlplane.Failure {
		return &controlplane.Failure{Reason: reason, Message: message}
	}
	text := err.Error()
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded"):
		return fail(controlplane.DiskFull, "the disk of the plane's data is full; it is tried again")
	case errors.Is(err, unix.EADDRINUSE) || strings.Contains(text, "address already in use"):
		return fail(controlplane.PortTaken, "somebody else listens on the plane's port; it gets another one")
	case errors.Is(err, errOutOfMemory):
		return fail(controlplane.OutOfMemory, text+" and was ended; it is started again: "+
			"delete objects that the cluster does not need, and list fewer at the same time")
	case errors.Is(err, errHangs):
		return fail(controlplane.PlaneHangs, text)
	case errors.Is(err, plane.ErrExited):
		return fail(controlplane.PlaneFailed, "the control plane's process ended: "+exitReason(text))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return fail(controlplane.BinaryMissing, "the release's program cannot be run; it is tried again")
	}
	return fail(controlplane.PlaneFailed, text)
}

// exitReason finds the reason of a process's end in its output: the last line
// with its name as prefix, or Go's report of a panic. Other log lines give none.
func exitReason(output string) string {
	const maxReason = 500
	reason := "it was killed, or gave no reason"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{"atoll-kube: ", "panic: ", "fatal error: "} {
			if i := strings.Index(line, prefix); i >= 0 {
				reason = line[i:min(len(line), i+maxReason)]
			}
		}
	}
	return reason
}

// backoff returns how long to wait before a plane is started again. The first
// time it is 0: most planes that end were killed.
func backoff(f *controlplane.Failure) time.Duration {
	if f.Count <= 1 {
		return 0
	}
	limit := 30 * time.Second
	switch f.Reason {
	case controlplane.PlaneFailed, controlplane.PlaneHangs, controlplane.OutOfMemory:
	default:
		limit = 3 * time.Second // to look at a disk, a port or a file costs nothing
	}
	return min(limit, 100*time.Millisecond<<min(f.Count-2, 12))
}

// checkRunnable returns an error unless binary is a program.
func checkRunnable(binary string) error {
	info, err := os.Stat(binary)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s: %w", binary, os.ErrPermission)
	}
	return nil
}
