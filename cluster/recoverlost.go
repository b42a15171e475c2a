package cluster

import (
	"fmt"
	"time"
)

// MinRecoverLostAfter is the shortest time after which the region may recover the clusters of a management cluster by
// itself when its agent is lost. Maestro reports an agent as lost after about a minute, and a machine that restarts is
// back after a few.
const MinRecoverLostAfter = 5 * time.Minute

// CheckRecoverLostAfter returns an error unless after is 0, which means never, or whole minutes and at least
// MinRecoverLostAfter. The charts accept no parts of a minute, so nothing else does.
func CheckRecoverLostAfter(after time.Duration) error {
	switch {
	case after != 0 && after < MinRecoverLostAfter:
		return fmt.Errorf("%s is too short; it must be 0 (never) or at least 5m", after)
	case after%time.Minute != 0:
		return fmt.Errorf("%s is not whole minutes; take %s", after,
			FormatRecoverLostAfter(after.Truncate(time.Minute)+time.Minute))
	}
	return nil
}

// ParseRecoverLostAfter parses a time in the form of [time.ParseDuration], and checks it.
func ParseRecoverLostAfter(text string) (time.Duration, error) {
	after, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no time such as 30m", text)
	}
	return after, CheckRecoverLostAfter(after)
}

// FormatRecoverLostAfter returns the text of a time that CheckRecoverLostAfter accepts, such as 0, 30m, 2h or 1h30m.
// The schemas of the charts accept this form, and not all that time.ParseDuration does: not 30m0s, for example.
func FormatRecoverLostAfter(after time.Duration) string {
	hours, minutes := after/time.Hour, after%time.Hour/time.Minute
	switch {
	case after == 0:
		return "0"
	case hours == 0:
		return fmt.Sprintf("%dm", minutes)
	case minutes == 0:
		return fmt.Sprintf("%dh", hours)
	}
	return fmt.Sprintf("%dh%dm", hours, minutes)
}
