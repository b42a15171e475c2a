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
	t.Cleanup(func() { setSlack(exactSlack) })
	for _, want := range []time.Duration{slack, exactSlack, slack} {
		setSlack(want)
		for _, got := range slackOfThreads(t) {
			if got != want {
				t.Errorf("a thread has a slack of %v after %v was set", got, want)
			}
		}
	}
}

// Threads that were made while the process was idle have exact timers when it is busy, and so have those that they
// make.
func TestThreadsOfAnIdleProcessAreExactWhenItIsBusy(t *testing.T) {
	p := &thisProcess{}
	t.Cleanup(func() { p.setUp(busy) })
	p.setUp(idle)
	const n = 20
	var locked, read sync.WaitGroup
	locked.Add(n)
	isBusy := make(chan struct{})
	for range n {
		read.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			<-isBusy
			if ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || time.Duration(ns) != exactSlack {
				t.Errorf("a thread of the idle process has a slack of %v, %v", time.Duration(ns), err)
			}
		})
	}
	locked.Wait() // each has a thread of its own
	p.setUp(busy)
	close(isBusy)
	read.Wait()
	for _, got := range slackOfThreads(t) {
		if got != exactSlack {
			t.Errorf("a thread has a slack of %v", got)
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
