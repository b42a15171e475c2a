package bundle

import (
	"strconv"
)

// IsNewer reports whether a status with sequence a is later than one with b.
// Sequences are snowflakes: time in the high bits, then node, then step, so
// they compare as numbers. A status without one is later than nothing, except
// where there was none before.
func IsNewer(a, b string) bool {
	if b == "" {
		return true
	}
	na, errA := strconv.ParseUint(a, 10, 63)
	nb, errB := strconv.ParseUint(b, 10, 63)
	if errA != nil || errB != nil {
		return errA == nil
	}
	return na > nb
}
