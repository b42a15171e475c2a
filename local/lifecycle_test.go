package local

import (
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
	check("with the option", UpOptions{RecoverLostAfter: new("30m0s")}, "30m0s")
	check("a later start without it", UpOptions{}, "30m0s")
	check("declared settings without a time", UpOptions{Settings: &Settings{}}, "30m0s")
	check("declared to be never", UpOptions{Settings: &Settings{RecoverLostAfter: "0"}}, "0")
	check("declared", UpOptions{Settings: &Settings{RecoverLostAfter: "1h"}}, "1h")
}
