package hosting

import (
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

func TestACustomerReadsWhatIsNotAsItShouldBe(t *testing.T) {
	ended := time.Date(2026, 11, 24, 0, 30, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		state controlplane.SizeState
		want  string
	}{
		"all is well": {controlplane.SizeState{Size: cluster.Small, Wanted: cluster.Small, IsEnforced: true}, ""},
		"ended for want of memory": {controlplane.SizeState{Size: cluster.Small, Wanted: cluster.Medium, IsEnforced: true,
			OutOfMemory: ended}, "at 2026-11-24T00:30:00Z the control plane had used up its memory, was ended and was " +
			"started again; it becomes medium when its management cluster has room"},
		"ended, and larger since": {controlplane.SizeState{Size: cluster.Medium, Wanted: cluster.Medium, IsEnforced: true,
			OutOfMemory: ended}, ""},
		"ended as the largest": {controlplane.SizeState{Size: cluster.Large, Wanted: cluster.Large, IsEnforced: true,
			OutOfMemory: ended}, "at 2026-11-24T00:30:00Z the control plane had used up its memory, was ended and was " +
			"started again; there is no larger size: delete objects that the cluster does not need, and list fewer at the " +
			"same time"},
		"refused": {controlplane.SizeState{Size: cluster.Small, Wanted: cluster.Small, IsRefused: true},
			"the limits of this size do not hold: the management cluster's machine has refused them; they are tried again"},
		"no control groups": {controlplane.SizeState{Size: cluster.Small, Wanted: cluster.Small},
			"no limit is enforced: the management cluster's machine has no control groups for hosting"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sizeMessage(c.state); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
