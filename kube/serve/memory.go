package serve

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"atoll.dev/kube/idle"
)

const (
	// gcPercent trades a little processor time for memory: a plane is idle most of the time, and there are many on a
	// machine.
	gcPercent = 50

	// startGCPercent holds from the start until returnMemory sets gcPercent. With gcPercent a start takes one and a half
	// times the processor time. A greater value fragments the heap for good, because garbage piles up between the
	// objects that stay: README.md has the figures.
	startGCPercent = 200
)

// tuneRuntime sets the parameters of the Go runtime. GOGC and GOMAXPROCS in the environment take precedence.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(startGCPercent)
	}
	idle.UseProcessors()
}

// returnMemory sets gcPercent, unless the environment has GOGC, and returns to the operating system the memory that
// only the start needed. It does so twice: after 3 s, when the controllers have listed the objects, and 10 s later,
// when they have settled.
func returnMemory(ctx context.Context) {
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
