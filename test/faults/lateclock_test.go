package faults

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// TestI6AnAgentWithoutStoreAndWithALateClockReports: an agent loses its store while its
// clock is two hours late. Its statuses must reach the servers at once, not only when the
// clock has caught up with the latest sequence that the servers stored.
func TestI6AnAgentWithoutStoreAndWithALateClockReports(t *testing.T) {
	w := newWorld(t, 1, 0)
	w.apply(0, "w0-0", "before")
	w.apply(0, "w0-1", "before")
	w.awaitRequestedWorks(1, []string{"nothing"})
	a := w.agents[0]
	a.Kill()
	if err := os.RemoveAll(a.config.Store); err != nil {
		t.Fatal(err)
	}
	late := strconv.FormatInt(int64(-2*time.Hour), 10)
	if err := os.WriteFile(a.config.Wall, []byte(late), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Start()
	w.apply(0, "w0-0", "after")
	w.awaitRequestedWorks(2, []string{"agent wiped with a late clock"})
	w.requestDeletion(0, "w0-1")
	w.awaitRequestedWorks(3, []string{"nothing"})
}
