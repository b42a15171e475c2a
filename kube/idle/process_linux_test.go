package idle

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTheSlackOfAllThreads reads the slack of several threads after each change.
func TestTheSlackOfAllThreads(t *testing.T) {
	t.Cleanup(func() { setSlack(0) })
	initial := slackOfThreads(t)[0]
	for _, want := range []time.Duration{slack, 0, slack} {
		setSlack(want)
		for _, got := range slackOfThreads(t) {
			if want == 0 && got != initial || want != 0 && got != want {
				t.Errorf("a thread has a slack of %v after %v was set; initially %v", got, want, initial)
			}
		}
	}
}

// slackOfThreads returns the slack of some threads that exist at once.
func slackOfThreads(t *testing.T) []time.Duration {
	const n = 8
	all := make([]time.Duration, n)
	var locked, read sync.WaitGroup
	locked.Add(n)
	for i := range n {
		read.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			locked.Wait()
			ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			if err != nil {
				t.Errorf("reading the slack: %v", err)
			}
			all[i] = time.Duration(ns)
		})
	}
	read.Wait()
	return all
}
