//go:build race

package store_test

// reconnecting is smaller under the race detector, where 5,000 took three minutes on two busy cores.
const reconnecting = 500
