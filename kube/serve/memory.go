package serve

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	// gcPercent trades a little processor time for memory: a plane is idle most of the time, and there are many on a
	// machine. It holds for the start too, which fragments the heap for good when its garbage piles up between what stays:
	// README.md has the figures.
	gcPercent = 50

	// maxProcs bounds the processors of the Go scheduler, each of which has caches of its own.
	maxProcs = 4
)

// tuneRuntime sets up the Go runtime. GOGC, GOMEMLIMIT and GOMAXPROCS in the environment win.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
}

// giveBack returns to the system what only the start needed: once when the controllers have listed
// what there is, and once when they have settled.
func giveBack(ctx context.Context) {
	for _, after := range []time.Duration{3 * time.Second, 10 * time.Second} {
		select {
		case <-ctx.Done():
			return
		case <-time.After(after):
			debug.FreeOSMemory()
		}
	}
}
