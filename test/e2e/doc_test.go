// Package e2e tests a whole region from the outside: the built binaries, real
// PostgreSQL, a real broker, real API servers, and clients that are not ours
// where there are any. It has no code of its own; nothing imports it.
package e2e

import (
	"os"
	"testing"

	"atoll.dev/test/localtest"
)

func TestMain(m *testing.M) {
	localtest.StartRestartedWith("--backups")
	os.Exit(localtest.Main(m, "--azure"))
}
