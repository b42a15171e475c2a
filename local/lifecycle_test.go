package local

import (
	"os"
	"slices"
	"testing"
)

// TestTheLifecycleManagerRecoversLostClustersAfterTheTimeOfTheRegion: the option of `atoll up` stays in the home, and a
// declared time, also never, is before it.
func TestTheLifecycleManagerRecoversLostClustersAfterTheTimeOfTheRegion(t *testing.T) {
	h, _ := newHome(t)
	check := func(what string, o UpOptions, want string) {
		t.Helper()
		st, _, err := h.prepareState(o)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range newTopology(h, st, ownPrograms).specs() {
			if i := slices.Index(s.Args, "--recover-lost-after"); s.Name == clmName && i >= 0 {
				got = s.Args[i+1]
			}
		}
		if got != want {
			t.Errorf("%s: the time is %q, want %q", what, got, want)
		}
	}
	check("a new region", UpOptions{ManagementClusters: 1}, "")
	check("with the option", UpOptions{RecoverLostAfter: new("30m0s")}, "30m")
	check("a later start without it", UpOptions{}, "30m")
	check("declared settings without a time", UpOptions{Settings: &Settings{}}, "30m")
	check("declared to be never", UpOptions{Settings: &Settings{RecoverLostAfter: "0"}}, "0")
	check("declared", UpOptions{Settings: &Settings{RecoverLostAfter: "1h"}}, "1h")
}

// TestTheTimeOfLossesOfARunningRegionMayBeGivenAgain: an option that means the present time changes nothing.
func TestTheTimeOfLossesOfARunningRegionMayBeGivenAgain(t *testing.T) {
	h, _ := newHome(t)
	up := func(after string) error {
		_, _, err := h.prepareState(UpOptions{RecoverLostAfter: &after})
		return err
	}
	check := func(present, after, want string) {
		t.Helper()
		got := "accepted"
		err := up(after)
		if err != nil {
			got = "refused"
		}
		if got != want {
			t.Errorf("--recover-lost-after %s is %s, and the region has %s: %v", after, got, present, err)
		}
	}
	recordSupervisor(t, h)
	check("the default", "0", "accepted")
	check("the default", "0s", "accepted")
	check("the default", "30m", "refused")
	if err := os.Remove(h.recordPath(supervisorName)); err != nil {
		t.Fatal(err)
	}
	check("the default, and does not run", "30m0s", "accepted")
	recordSupervisor(t, h)
	check("30m", "30m", "accepted")
	check("30m", "0", "refused")
	check("30m", "1h", "refused")
}
