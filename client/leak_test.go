package client

import (
	"testing"

	"atoll.dev/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }
