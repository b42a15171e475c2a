package cluster

import (
	"fmt"
	"strconv"
	"time"

	"atoll.dev/cluster/document"
)

// Pause is a request to change nothing, from spec.pausedUntil. The zero value is
// no pause.
type Pause struct {
	Indefinite bool      // until the field changes
	Until      time.Time // zero: no time
}

// ParsePause reads spec.pausedUntil as HyperShift does: "" is no pause, a boolean
// in a spelling of strconv.ParseBool is a pause without end or none, a time of
// RFC 3339 is a pause until then. For any other text it returns no pause and an
// error: a cluster is not paused by mistake.
func ParsePause(text string) (Pause, error) {
	if text == "" {
		return Pause{}, nil
	}
	if paused, err := strconv.ParseBool(text); err == nil {
		return Pause{Indefinite: paused}, nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return Pause{}, fmt.Errorf("%s is neither true nor false nor a time such as 2027-01-02T15:04:05Z",
			document.Quote(text))
	}
	return Pause{Until: until}, nil
}

// At reports whether the pause holds at now, and how long it lasts from now: 0
// for a pause without end.
func (p Pause) At(now time.Time) (active bool, left time.Duration) {
	if p.Indefinite {
		return true, 0
	}
	return now.Before(p.Until), max(0, p.Until.Sub(now))
}
