// Package hosted tests hosted clusters under faults in a whole region: what a
// customer was told is stored is never lost, what was ordered comes, and what
// was deleted leaves nothing. It has no code of its own; nothing imports it.
package hosted

import (
	"os"
	"testing"

	"atoll.dev/test/localtest"
)

func TestMain(m *testing.M) { os.Exit(localtest.Main(m)) }
