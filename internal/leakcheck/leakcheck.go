// Package leakcheck fails the tests of a package that leave goroutines behind.
//
// It waits longer than goleak.VerifyTestMain, which gives the last goroutines 0.4 s: on a machine under load the
// goroutine of a closed connection needs longer to end.
//
// It is for TestMain only.
package leakcheck

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// limit is how long the goroutines of passed tests may take to end.
const limit = time.Minute

// Main runs the tests of a package and exits. The exit code is 1 if the tests passed and goroutines of theirs are still
// there after limit; the standard error then has their stacks.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := awaitNone(limit); err != nil {
			fmt.Fprintln(os.Stderr, "the tests passed, and left goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// awaitNone waits until no goroutine of a test is left.
func awaitNone(limit time.Duration) (err error) {
	for end := time.Now().Add(limit); ; {
		if err = goleak.Find(); err == nil || time.Now().After(end) { // goleak.Find waits between its looks
			return err
		}
	}
}
