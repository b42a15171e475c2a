package backup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Retention says which chains are kept: whole (every second of the chain can be restored), or only the snapshot, or not
// at all.
type Retention struct {
	Whole  time.Duration // chains whose successor began within this time are kept whole
	Hourly int           // for how many hours before now one snapshot of each hour is kept
	Daily  int           // for how many days before now one snapshot of each day is kept
	Weekly int           // for how many weeks before now one snapshot of each week is kept
}

// DefaultRetention keeps every second of a day, an hourly snapshot for two days, a daily for a week, a weekly for four.
func DefaultRetention() Retention {
	return Retention{Whole: 24 * time.Hour, Hourly: 48, Daily: 7, Weekly: 4}
}

// Decision is the decision about one chain, which DeleteExpired executes.
type Decision int

// Decisions about a chain.
const (
	KeepWhole    Decision = iota // keep the snapshot and the log
	KeepSnapshot                 // keep the snapshot, delete the log
	Expire                       // delete everything
)

// Decide returns the decision of each chain by the times of their snapshots, which are in order, at now. It is a pure
// function. It keeps the last chain whole, and every chain with a time after now: the clock was set back, and that must
// not delete a backup.
//
// Of each hour, day and week it keeps the oldest snapshot. Later snapshots do not change that choice, so the snapshot
// of a day is one that was kept for its hour before.
func (r Retention) Decide(taken []time.Time, now time.Time) []Decision {
	decisions := make([]Decision, len(taken))
	kept := func(period time.Duration, n int) map[int]bool {
		keep, buckets := map[int]bool{}, map[int64]bool{}
		for i, t := range taken {
			bucket := t.Unix() / int64(period/time.Second)
			if oldest := now.Add(-time.Duration(n) * period); n > 0 && t.After(oldest) && !buckets[bucket] {
				buckets[bucket], keep[i] = true, true
			}
		}
		return keep
	}
	const day = 24 * time.Hour
	periods := []map[int]bool{kept(time.Hour, r.Hourly), kept(day, r.Daily), kept(7*day, r.Weekly)}
	for i, t := range taken {
		switch {
		case i == len(taken)-1, t.After(now), taken[i+1].After(now.Add(-r.Whole)):
			decisions[i] = KeepWhole
		case slices.ContainsFunc(periods, func(keep map[int]bool) bool { return keep[i] }):
			decisions[i] = KeepSnapshot
		default:
			decisions[i] = Expire
		}
	}
	return decisions
}

// DeleteExpired deletes the objects that a plane's retention does not keep, and chains that began more than a day ago
// and have no manifest. It deletes the manifest of an expired chain first, so that Chains does not list a half-deleted
// chain. It returns the number of objects that it has deleted. It keeps a chain whole while the store locks it.
func DeleteExpired(ctx context.Context, store Store, plane Plane, r Retention, now time.Time) (n int, err error) {
	objects, err := listChains(ctx, store, plane)
	if err != nil {
		return 0, err
	}
	var finished []chainObjects
	var taken []time.Time
	remove := func(o chainObjects, matches func(name string) bool) error {
		for _, name := range o.names {
			if !matches(name) {
				continue
			}
			if err := store.Delete(ctx, plane.prefix()+o.chain+"/"+name); err != nil {
				return err
			}
			n++
		}
		return nil
	}
	anything := func(string) bool { return true }
	// A chain that cannot be deleted, for example because the store locks it, must not stop the deletion of others.
	var first error
	failed := 0
	note := func(err error) {
		if failed++; first == nil {
			first = err
		}
	}
	for _, o := range objects {
		at, err := parseChain(o.chain)
		if err != nil {
			return n, err
		}
		if slices.Contains(o.names, manifestObject) {
			finished, taken = append(finished, o), append(taken, at)
		} else if now.Sub(at) > KeepLocked(store, 24*time.Hour) {
			if err := remove(o, anything); err != nil {
				note(err)
			}
		}
	}
	r.Whole = KeepLocked(store, r.Whole)
	for i, decision := range r.Decide(taken, now) {
		var err error
		switch decision {
		case KeepSnapshot:
			// Delete the mark, and then the segments from the first on, so that Chains is correct after each step.
			if err = remove(finished[i], func(name string) bool { return name == markObject }); err == nil {
				err = remove(finished[i], func(name string) bool { return strings.HasPrefix(name, segmentPrefix) })
			}
		case Expire:
			if err = remove(finished[i], func(name string) bool { return name == manifestObject }); err == nil {
				err = remove(finished[i], func(name string) bool { return name != manifestObject })
			}
		}
		if err != nil {
			note(err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed > 0 {
		return n, fmt.Errorf("%d chains, the first: %w", failed, first)
	}
	return n, nil
}
