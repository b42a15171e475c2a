package resync

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/api/work"
)

// TestStatusAsksAreCollected: works that are added during the pause of a consumer make one
// request after the pause. No consumer waits for another's pause.
func TestStatusAsksAreCollected(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	a := newRepeatedWorks()
	take := func(after time.Duration, want string) {
		t.Helper()
		now = now.Add(after)
		due, next := a.take(now)
		got := ""
		for _, consumer := range []work.Consumer{"mc1", "mc2"} {
			if works, ok := due[consumer]; ok {
				got += fmt.Sprintf("%s:%d ", consumer, len(works.repeated))
				if len(works.replaced) > 0 {
					got += fmt.Sprintf("and %d ", len(works.replaced))
				}
			}
		}
		if !next.IsZero() {
			got += "next in " + next.Sub(now).String()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	a.add("mc1", []work.ID{"a", "b"})
	take(0, "mc1:2 ")
	a.add("mc1", []work.ID{"a", "b"})
	a.add("mc1", []work.ID{"b", "c"})
	take(time.Second, "next in 9s")
	a.add("mc2", []work.ID{"x"})
	take(time.Second, "mc2:1 next in 8s")
	take(8*time.Second, "mc1:3 ")
	take(time.Hour, "")
	// The request after a response waits for the agent's other responses to the same request.
	a.addReplaced("mc1", []work.ID{"a"}, now)
	take(6*time.Second, "next in 4s")
	a.addReplaced("mc1", []work.ID{"b"}, now)
	a.add("mc1", []work.ID{"c"})
	take(6*time.Second, "next in 4s")
	take(4*time.Second, "mc1:1 and 2 ")
	take(time.Hour, "")
	if len(a.last) > 0 || len(a.waiting) > 0 {
		t.Errorf("%d and %d stay in memory without use", len(a.last), len(a.waiting))
	}
}
