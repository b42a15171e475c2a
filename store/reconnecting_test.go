//go:build !race

package store_test

// reconnecting is how many watches continue at once in TestContinuedWatchesDelayNoFollower.
const reconnecting = 5000
