// Package quick says which tests "make quick" and "make test" leave out.
//
// "make quick" runs the tests with -short: LeavesOut leaves out those that need a server or another program, or that
// wait for real time. pgtest, planetest and localtest leave out the tests that need PostgreSQL, a control plane or a
// region.
// "make test" runs all of these, without the slow ones: Slow leaves out tests that take minutes, or that repeat at full
// size what a smaller test shows. "make test-all" runs them, too.
//
// It is for tests only.
package quick

import (
	"os"
	"testing"
)

// LeavesOut skips the test with -short. The reason completes the sentence "the test ...": "waits for real time-outs".
// A test calls it first, before it starts or registers anything.
func LeavesOut(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short leaves this test out: it %s", reason)
	}
}

// Slow skips the test unless the environment has ATOLL_SLOW=1, which "make test-all" sets. The reason completes the
// sentence "the test ...": "moves a cluster five times, four minutes". A test calls it first, like LeavesOut.
func Slow(t testing.TB, reason string) {
	t.Helper()
	if !runsSlow() {
		t.Skipf("it %s: ATOLL_SLOW=1 runs it", reason)
	}
}

// runsSlow reports whether slow tests run. A test asks it that has a small and a full size.
func runsSlow() bool { return os.Getenv("ATOLL_SLOW") == "1" }
