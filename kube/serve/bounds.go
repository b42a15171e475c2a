package serve

import (
	"fmt"
	"os"
	"strconv"
)

// Bounds are variables of the environment and no flags, as GOMEMLIMIT: a program from before a bound ignores it, and
// starts.
const (
	requestsVariable = "ATOLL_MAX_REQUESTS"     // that the API server works on at the same time
	eventsVariable   = "ATOLL_MAX_WATCH_EVENTS" // that each watch cache keeps
)

const (
	defaultRequests = 600 // upstream's: 400 that read and 200 that write

	// A list takes at most a sixth of the seats of its priority level, which is global-default for most users. With fewer
	// requests this level has less than 12 seats, so each list would take one, whatever it reads.
	minRequests = 150
	maxRequests = 10_000
)

const (
	minEvents = 100     // that a watch cache begins with
	maxEvents = 102_400 // upstream's bound, and the default
)

// readBound returns the value of a variable, which must be between least and most, or value when it is not set.
func readBound(variable string, value, least, most int) (int, error) {
	text := os.Getenv(variable)
	if text == "" {
		return value, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s: %q is not a number between %d and %d", variable, text, least, most)
	}
	return n, nil
}
