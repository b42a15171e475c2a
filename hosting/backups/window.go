package backups

import (
	"errors"
	"maps"
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

// setWindow records the chains of a plane, which its follower f has listed. It does nothing when f is not the plane's
// follower any more, or is about to end: the plane may be deleted, and nobody would remove the record.
func (b *Backups) setWindow(id controlplane.ID, f *follower, chains []backup.Chain) {
	b.mu.Lock()
	if b.followers[id] != f || f != nil && f.end != nil {
		b.mu.Unlock()
		return
	}
	b.listed[id] = chains
	maps.DeleteFunc(b.damaged[id], func(name string, _ struct{}) bool { // it has expired, or somebody has deleted it
		return !slices.ContainsFunc(chains, func(c backup.Chain) bool { return c.Name == name })
	})
	b.updateWindow(id)
	b.mu.Unlock()
	b.changed(id)
}

// noteRead records which chains of a plane a restore could read: got and err are the results of backup.Fetch. A damaged
// chain is shown as such until a restore reads it, it is not in the store any more, or this process ends. Nothing is
// recorded about a plane whose chains this process has not listed, such as the source of a clone that runs elsewhere.
func (b *Backups) noteRead(id controlplane.ID, got backup.Fetched, err error) {
	damaged := backup.DamagedChains(errors.Join(err, got.Damage))
	b.mu.Lock()
	if b.listed[id] == nil {
		b.mu.Unlock()
		return
	}
	before := maps.Clone(b.damaged[id])
	if b.damaged[id] == nil {
		b.damaged[id] = map[string]struct{}{}
	}
	delete(b.damaged[id], got.Chain)
	for _, name := range damaged {
		b.damaged[id][name] = struct{}{}
	}
	hasChanged := !maps.Equal(before, b.damaged[id])
	if hasChanged {
		b.updateWindow(id)
	}
	b.mu.Unlock()
	if hasChanged {
		b.changed(id)
	}
}

// updateWindow computes a plane's window from its list of chains. It leaves out a chain when the clock was set back
// after it and later chains restore all its moments. It keeps those whose order the list does not show: a restore
// reads the order elsewhere. A damaged chain is in the window, if there is room, and decides nothing about the
// others: somebody without keys may have planted it. The caller holds mu.
func (b *Backups) updateWindow(id controlplane.ID) {
	w := controlplane.BackupWindow{Stored: b.windows[id].Stored}
	isDamaged := func(c backup.Chain) bool {
		_, isDamaged := b.damaged[id][c.Name]
		return isDamaged
	}
	good := slices.DeleteFunc(slices.Clone(b.listed[id]), isDamaged)
	nextGood := 0
	for _, c := range b.listed[id] {
		shown := controlplane.BackupChain{Taken: c.Taken, EverySecond: c.Whole, Damaged: isDamaged(c)}
		if !shown.Damaged {
			until := backup.Until(good, nextGood)
			nextGood++
			if c.BadOrder == nil && !until.IsZero() && !until.After(c.Taken) {
				continue
			}
		}
		w.Chains = append(w.Chains, shown)
	}
	for _, c := range w.Chains {
		if !c.Damaged && (w.From.IsZero() || c.Taken.Before(w.From)) {
			w.From = c.Taken
		}
	}
	w.Chains = newestChains(w.Chains)
	b.windows[id] = w
}

// newestChains removes the chains above maxChains: the oldest damaged ones first, and then the oldest ones.
func newestChains(list []controlplane.BackupChain) []controlplane.BackupChain {
	surplus := len(list) - maxChains
	if surplus <= 0 {
		return list
	}
	list = slices.DeleteFunc(list, func(c controlplane.BackupChain) bool {
		if c.Damaged && surplus > 0 {
			surplus--
			return true
		}
		return false
	})
	return list[surplus:]
}
