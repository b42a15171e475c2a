package backup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Retention decides which chains are kept. A chain is whole (any second of it can be restored), or only its snapshot is
// kept, or nothing.
type Retention struct {
	Whole  time.Duration // chains whose successor began within this time are kept whole
	Hourly int           // of the hours before: the snapshots kept, one for each hour
	Daily  int
	Weekly int
}

// DefaultRetention keeps every second of a day, an hourly snapshot for two days, a daily for a week, a weekly for four.
func DefaultRetention() Retention {
	return Retention{Whole: 24 * time.Hour, Hourly: 48, Daily: 7, Weekly: 4}
}

// Decision is what DeleteExpired does with a chain.
type Decision int

// Decisions about a chain.
const (
	KeepWhole    Decision = iota // keep the snapshot and the log
	KeepSnapshot                 // keep the snapshot, delete the log
	Expire                       // delete everything
)

// Decide returns the decision of each chain by the times of their snapshots, which are in order, at now. It is a pure
// function. The last chain is always kept whole, and so is every chain with a time after now: a clock was set back,
// and no backup ends for that.
//
// The oldest snapshot of a period is the one that is kept for it: it stays the same when later ones come, so that a
// snapshot that is daily was hourly before.
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
// and have no manifest. It deletes the manifest of an expired chain first, so that a half-deleted chain is in no list.
// It returns the number of objects that it has deleted. While the store locks a chain, the chain stays whole.
func DeleteExpired(ctx context.Context, store Store, plane Plane, r Retention, now time.Time) (n int, err error) {
	objects, err := listChains(ctx, store, plane)
	if err != nil {
		return 0, err
	}
	var finished []chainObjects
	var taken []time.Time
	remove := func(o chainObjects, is func(name string) bool) error {
		for _, name := range o.names {
			if !is(name) {
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
	// What cannot be deleted, as under a lock of the store, must not keep everything else.
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
			// The mark, and then the segments from the first on: after each step a list shows the chain as it restores.
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
