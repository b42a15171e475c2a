// Package hosted tests hosted clusters under faults in a whole region: acknowledged data is never
// lost, ordered clusters become ready, and deleted clusters leave nothing. It has no code of its
// own; nothing imports it.
package hosted

import (
	"os"
	"testing"

	"atoll.dev/test/localtest"
)

func TestMain(m *testing.M) { os.Exit(localtest.Main(m)) }
