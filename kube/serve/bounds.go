package serve

import (
	"fmt"
	"os"
	"strconv"
)

// requestsVariable bounds the requests that the API server works on at the same time. It is a variable of the
// environment and no flag, as GOMEMLIMIT: a program from before it ignores it, and starts.
const requestsVariable = "ATOLL_MAX_REQUESTS"

const (
	defaultRequests = 600 // upstream's: 400 that read and 200 that write

	// A list takes at most a sixth of the seats of its priority level, which is global-default for most users. With fewer
	// requests this level has less than 12 seats, so each list would take one, whatever it reads.
	minRequests = 150
	maxRequests = 10_000
)

// readMaxRequests returns the value of requestsVariable, and the default when it is not set.
func readMaxRequests() (int, error) {
	value := os.Getenv(requestsVariable)
	if value == "" {
		return defaultRequests, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < minRequests || n > maxRequests {
		return 0, fmt.Errorf("%s: %q is not a number between %d and %d", requestsVariable, value, minRequests, maxRequests)
	}
	return n, nil
}
