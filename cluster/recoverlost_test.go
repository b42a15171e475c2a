package cluster

import (
	"testing"
	"time"
)

func TestTheTimeUntilLostClustersAreRecoveredIsNeverOrFiveMinutes(t *testing.T) {
	for after, isValid := range map[time.Duration]bool{0: true, 5 * time.Minute: true, time.Hour: true,
		5*time.Minute - 1: false, 1: false, -time.Hour: false} {
		if err := CheckRecoverLostAfter(after); (err == nil) != isValid {
			t.Errorf("%s: %v", after, err)
		}
	}
}
