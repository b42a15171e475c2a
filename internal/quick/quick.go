// Package quick says which tests "make quick" leaves out: it runs the tests with -short.
//
// A test is left out if it needs a server or another program, or if it waits for real time. "make test" runs all of
// them. pgtest, planetest and localtest leave out the tests that need PostgreSQL, a control plane or a region.
//
// It is for tests only.
package quick

import "testing"

// LeavesOut skips the test with -short. The reason completes the sentence "the test ...": "waits for real time-outs".
// A test calls it first, before it starts or registers anything.
func LeavesOut(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short leaves this test out: it %s", reason)
	}
}
