package cluster

import (
	"fmt"
	"time"
)

// MinRecoverLostAfter is the shortest time after which the region may recover the clusters of a management cluster by
// itself when its agent is lost. Maestro reports an agent as lost after about a minute, and a machine that restarts is
// back after a few.
const MinRecoverLostAfter = 5 * time.Minute

// CheckRecoverLostAfter returns an error unless after is 0, which means never, or at least MinRecoverLostAfter.
func CheckRecoverLostAfter(after time.Duration) error {
	if after != 0 && after < MinRecoverLostAfter {
		return fmt.Errorf("%s is too short; it must be 0 (never) or at least 5m", after)
	}
	return nil
}
