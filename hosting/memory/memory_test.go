package memory_test

import (
	"testing"

	"atoll.dev/hosting"
	"atoll.dev/hosting/memory"
	"atoll.dev/hosting/runtimetest"
)

var _ hosting.Planes = (*memory.Runtime)(nil)

func TestTheRuntimePassesTheSuite(t *testing.T) {
	m := memory.NewMachine()
	t.Cleanup(m.Close)
	runtimetest.Run(t, func(*testing.T) hosting.Planes { return memory.New(m, runtimetest.Releases...) })
}
