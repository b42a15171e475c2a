package testsite

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Seed returns the seed of a test's random choices, which it logs: ATOLL_SEED, or else a random one.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ATOLL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("ATOLL_SEED: %v", err)
		}
	}
	t.Logf("seed %d; ATOLL_SEED=%[1]d repeats it", seed)
	return seed
}

// Soak returns how long a loop of faults goes on: ATOLL_SOAK, or else usual.
func Soak(t testing.TB, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("ATOLL_SOAK")
	if text == "" {
		return usual
	}
	span, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("ATOLL_SOAK: %v", err)
	}
	return span
}
