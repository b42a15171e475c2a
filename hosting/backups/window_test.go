package backups

import (
	"errors"
	"testing"
	"time"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

// A chain whose order names do not show is in the window, and the window begins with the oldest chain. A chain whose
// moments a later one restores is not.
func TestTheWindowHasChainsWithABadOrder(t *testing.T) {
	b := New(Options{})
	b.changed = func(controlplane.ID) {}
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	chain := func(hour, generation int, period time.Time) backup.Chain {
		return backup.Chain{Taken: noon.Add(time.Duration(hour) * time.Hour), Whole: true,
			Order: backup.Order{Generation: generation, Period: period}}
	}
	bad := chain(3, 0, time.Time{})
	bad.BadOrder = errors.New("two orders")
	b.setWindow(id, nil, []backup.Chain{bad, chain(1, 1, noon), chain(9, 2, noon), chain(5, 3, noon.Add(5*time.Hour))})
	w, _ := b.Window(id)
	if !w.From.Equal(noon.Add(time.Hour)) || len(w.Chains) != 3 || !w.Chains[0].Taken.Equal(bad.Taken) {
		t.Errorf("the window is %+v", w)
	}
}
