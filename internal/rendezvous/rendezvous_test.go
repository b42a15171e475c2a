package rendezvous

import (
	"fmt"
	"slices"
	"testing"
)

func owners(members ...string) []string {
	all := make([]string, 3000)
	for slot := range all {
		all[slot], _ = Owner(members, func(m string) string { return fmt.Sprint(slot, "\x00", m) })
	}
	return all
}

func TestAJoiningOrLeavingMemberMovesItsOwnSlotsOnly(t *testing.T) {
	three, two := owners("a", "b", "c"), owners("a", "b")
	if !slices.Equal(three, owners("c", "a", "b")) {
		t.Error("the order of the members matters")
	}
	held := map[string]int{}
	for slot, owner := range three {
		held[owner]++
		if owner != "c" && two[slot] != owner {
			t.Errorf("slot %d goes from %s to %s although c left", slot, owner, two[slot])
		}
	}
	for _, m := range []string{"a", "b", "c"} {
		if held[m] < 850 || held[m] > 1150 { // six standard deviations
			t.Errorf("%s holds %d of 3000 slots", m, held[m])
		}
	}
}

func TestSlotsHaveNoOwnerWithoutMembers(t *testing.T) {
	if owner, ok := Owner(nil, func(m string) string { return m }); ok {
		t.Errorf("%q", owner)
	}
}
