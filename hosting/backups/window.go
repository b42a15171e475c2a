package backups

import (
	"slices"

	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

// maxChains bounds the list of a window.
const maxChains = 100

// Window returns the period to which a plane can be restored; false while it is unknown.
func (b *Backups) Window(id controlplane.ID) (controlplane.BackupWindow, bool) {
	b.mu.Lock()
	w, ok := b.windows[id]
	b.mu.Unlock()
	if s, isMade := b.State(id); isMade && !s.Stored.IsZero() {
		w.Stored = s.Stored
	}
	return w, ok
}

// setWindow records the chains of a plane. It leaves out those whose moments a later one restores, because the clock
// was set back. It keeps those whose order the list does not show: a restore reads the order elsewhere.
func (b *Backups) setWindow(id controlplane.ID, chains []backup.Chain) {
	w := controlplane.BackupWindow{}
	for i, c := range chains {
		if until := backup.Until(chains, i); c.BadOrder == nil && !until.IsZero() && !until.After(c.Taken) {
			continue
		}
		w.Chains = append(w.Chains, controlplane.BackupChain{Taken: c.Taken, EverySecond: c.Whole})
	}
	if len(w.Chains) > maxChains { // keep the newest
		w.Chains = w.Chains[len(w.Chains)-maxChains:]
	}
	if len(w.Chains) > 0 {
		w.From = slices.MinFunc(w.Chains, func(a, b controlplane.BackupChain) int { return a.Taken.Compare(b.Taken) }).Taken
	}
	b.mu.Lock()
	w.Stored = b.windows[id].Stored
	b.windows[id] = w
	b.mu.Unlock()
	b.changed(id)
}
