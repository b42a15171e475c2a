//go:build !race

package store_test

// reconnecting is how many watches continue at once in TestWatchesThatContinueStarveNoFollower.
const reconnecting = 5000
