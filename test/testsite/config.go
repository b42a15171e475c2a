package testsite

import (
	"fmt"
	"os"
)

// WithOwnConfig runs the tests of a package with an empty configuration directory of their own, so that the login of
// the developer cannot influence them. It returns the exit code of run.
func WithOwnConfig(run func() int) int {
	dir, err := os.MkdirTemp("", "atoll-config-")
	if err == nil {
		err = os.Setenv("XDG_CONFIG_HOME", dir)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "configuration directory of the tests: %v\n", err)
		return 1
	}
	code := run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintf(os.Stderr, "configuration directory of the tests: %v\n", err)
		return 1
	}
	return code
}
