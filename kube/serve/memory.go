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
	// machine.
	gcPercent = 50

	// startGCPercent holds until the first giveBack. With gcPercent a start takes half more processor time. More than
	// this fragments the heap for good, because garbage piles up between what stays: README.md has the figures.
	startGCPercent = 200

	// maxProcs bounds the processors of the Go scheduler, each of which has caches of its own.
	maxProcs = 4
)

// tuneRuntime sets up the Go runtime. GOGC, GOMEMLIMIT and GOMAXPROCS in the environment win.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(startGCPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
}

// giveBack ends the time of startGCPercent and returns to the system the memory that only the start needed: once when
// the controllers have listed what there is, and once when they have settled.
func giveBack(ctx context.Context) {
	for _, after := range []time.Duration{3 * time.Second, 10 * time.Second} {
		select {
		case <-ctx.Done():
			return
		case <-time.After(after):
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(gcPercent)
			}
			debug.FreeOSMemory()
		}
	}
}
