package idle

import (
	"os"
	"runtime"
	"sync"
	"time"
)

const (
	// maxProcessors bounds the processors of the Go scheduler, each of which has caches of its own.
	maxProcessors = 4

	// slack is how late a timer of an idle plane may end. It is less than half of the least period in a plane that
	// matters, etcd's tick of 50 ms.
	slack = 20 * time.Millisecond

	// exactSlack is how late a timer of a busy plane may end: Linux's own value for a new process.
	exactSlack = 50 * time.Microsecond
)

// UseProcessors lets this process use all processors that it may, but not more than four. What Go permits by itself
// follows the process's control group; a process that had more than four at its start keeps four. GOMAXPROCS in the
// environment takes precedence.
func UseProcessors() {
	if !mayChangeProcessors() {
		return
	}
	if hasMore() {
		runtime.GOMAXPROCS(maxProcessors)
		return
	}
	runtime.SetDefaultGOMAXPROCS()
}

// hasMore reports whether Go permitted more than maxProcessors at the first call. Go tells what it permits only by
// setting it, which stops all goroutines, so later calls return the same.
var hasMore = sync.OnceValue(func() bool {
	runtime.SetDefaultGOMAXPROCS()
	return runtime.GOMAXPROCS(0) > maxProcessors
})

func mayChangeProcessors() bool { return os.Getenv("GOMAXPROCS") == "" }

// thisProcess implements process.
type thisProcess struct{}

func (*thisProcess) setUp(m mode) {
	if m == busy {
		setSlack(exactSlack) // first, because more processors need more threads
		UseProcessors()
		return
	}
	setSlack(slack)
	if mayChangeProcessors() {
		runtime.GOMAXPROCS(1)
	}
}
