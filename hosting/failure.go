package hosting

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/plane"
)

// failure is why a plane does not run, for its conditions.
type failure struct {
	Reason, Message string
	Count           int // of failures without a good time between them
}

// Reasons of failures.
const (
	failedPort   = "PortTaken"
	failedDisk   = "DiskFull"
	failedBinary = "BinaryMissing"
	failedData   = "DataMissing"
	failedPlane  = "PlaneFailed"
	failedHung   = "PlaneHangs"
)

// errHangs is the error of a plane whose process runs and does not answer.
var errHangs = errors.New("the plane does not answer")

// classify finds the reason of a failure from the error and from what the
// plane's process said last.
func classify(err error) (reason, message string) {
	text := err.Error()
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		strings.Contains(text, "no space left on device") || strings.Contains(text, "disk quota exceeded"):
		return failedDisk, "the disk of the plane's data is full; it is tried again"
	case errors.Is(err, unix.EADDRINUSE) || strings.Contains(text, "address already in use"):
		return failedPort, "somebody else listens on the plane's port; it gets another one"
	case errors.Is(err, errHangs):
		return failedHung, text
	case errors.Is(err, plane.ErrExited):
		return failedPlane, "the control plane's process ended: " + lastWords(text)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return failedBinary, "the release's program cannot be run; it is tried again"
	}
	return failedPlane, text
}

// lastWords is the reason of its end that a plane gave: a line that begins
// with its name, or Go's report of a panic. Log lines before a kill are none.
func lastWords(text string) string {
	words := "it was killed, or gave no reason"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{"atoll-kube: ", "panic: ", "fatal error: "} {
			if i := strings.Index(line, prefix); i >= 0 {
				words = line[i:min(len(line), i+500)]
			}
		}
	}
	return words
}

// backoff is how long to wait before a plane is started again. The first time
// it is not waited: most planes that end were killed.
func (f failure) backoff() time.Duration {
	if f.Count <= 1 {
		return 0
	}
	most := 30 * time.Second
	if f.Reason != failedPlane && f.Reason != failedHung {
		most = 3 * time.Second // costs nothing to look
	}
	return min(most, 100*time.Millisecond<<min(f.Count-2, 12))
}

func (f failure) String() string { return fmt.Sprintf("%s: %s", f.Reason, f.Message) }
