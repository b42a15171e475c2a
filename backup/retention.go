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

const (
	// mostAge bounds the time that counts between two chains of consecutive generations.
	mostAge = 24 * time.Hour
	// ageLimit bounds ages, so that no sum of ages overflows.
	ageLimit = 100 * 365 * 24 * time.Hour
	// alwaysWhole is the number of chains that stay whole at any age. They are those of a day of a plane that runs.
	alwaysWhole = 24
)

// ages returns the ages of chains, which are in the order in which they began, at now. The age of a chain is the
// lesser of two times:
//
//  1. The sum of the times between it and the chains after it, up to now. A later chain is never older, and the time
//     between two chains counts as a day for each generation at most. So no jump of the clock makes chains old.
//  2. The time since Chain.Taken, unless that is later than now. Somebody who can store objects and has no keys can
//     make names of chains that never were, and raise the sum by them, but not this time.
//
// A chain without a generation has only the second: it is 0 when Taken is later than now.
func ages(chains []Chain, now time.Time) []time.Duration {
	list := make([]time.Duration, len(chains))
	next := Chain{Taken: now}
	sum := time.Duration(0)
	for i, c := range slices.Backward(chains) {
		own := now.Sub(c.Taken)
		if c.Generation == 0 {
			list[i] = max(own, 0)
			continue
		}
		passed := min(max(next.Taken.Sub(c.Taken), 0), ageLimit)
		if generations := time.Duration(max(next.Generation-c.Generation, 1)); passed/mostAge >= generations {
			passed = generations * mostAge
		}
		sum, next = min(sum+passed, ageLimit), c
		if list[i] = sum; own >= 0 {
			list[i] = min(sum, own)
		}
	}
	return list
}

// successorAges returns how long ago the successor of each chain began: the chain's log goes on until then. The chains
// are in the order in which they began, and have these ages. Where several chains can be the successor, because they
// have the chain's generation or share the next one, the youngest counts. The last chain has no successor, and 0.
func successorAges(chains []Chain, ages []time.Duration) []time.Duration {
	list := make([]time.Duration, len(chains))
	generation := 0
	var same, next time.Duration // ages of the youngest chain with this generation, and with the next one
	for i, c := range slices.Backward(chains) {
		switch {
		case i == len(chains)-1:
			generation, same, next = c.Generation, ages[i], ageLimit
			continue
		case c.Generation == 0:
			list[i] = ages[i+1]
			continue
		case c.Generation == generation:
			list[i] = min(same, next)
		default:
			generation, next, same = c.Generation, same, ages[i]
			list[i] = next
		}
		same = min(same, ages[i])
	}
	return list
}

// Decide returns the decision of each chain, which are in the order in which they began, at now. It is a pure function.
// It keeps the last chain whole, and the last alwaysWhole chains that have a generation, whatever the clock says.
//
// Of each hour, day and week it keeps the oldest snapshot. Later snapshots do not change that choice, so the snapshot
// of a day is one that was kept for its hour before.
//
// Names prove nothing: somebody who can store objects and has no keys can make some that look like those of chains.
// While clocks are right, every chain that began within Whole stays whole all the same, and so does the one before
// these when its generation is one less. Older chains can lose their places to such names: that of the oldest snapshot
// of an hour, day or week, and that of one of the last alwaysWhole chains. DeleteExpired keeps what the store locks.
func (r Retention) Decide(chains []Chain, now time.Time) []Decision {
	decisions, ages := make([]Decision, len(chains)), ages(chains, now)
	successors := successorAges(chains, ages)
	kept := func(period time.Duration, n int) map[int]bool {
		keep, buckets := map[int]bool{}, map[int64]bool{}
		for i, c := range chains {
			bucket := c.Taken.Unix() / int64(period/time.Second)
			if ages[i] < time.Duration(n)*period && !buckets[bucket] {
				buckets[bucket], keep[i] = true, true
			}
		}
		return keep
	}
	const day = 24 * time.Hour
	periods := []map[int]bool{kept(time.Hour, r.Hourly), kept(day, r.Daily), kept(7*day, r.Weekly)}
	last := len(chains) - 1
	for i, c := range chains {
		isRecent := c.Generation > 0 && last-i < alwaysWhole
		switch {
		case i == last, isRecent, min(ages[i], successors[i]) < r.Whole, c.Generation == 0 && c.Taken.After(now):
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
//
// It leaves a chain alone whose order it cannot know because of Chain.BadOrder, and returns that error when it has
// deleted the rest.
func DeleteExpired(ctx context.Context, store Store, plane Plane, r Retention, now time.Time) (n int, err error) {
	objects, err := listChains(ctx, store, plane)
	if err != nil {
		return 0, err
	}
	all := make([]Chain, len(objects))
	for i, o := range objects {
		all[i] = o.chain
	}
	ages := ages(all, now)
	var finished []chainObjects
	var chains []Chain
	remove := func(o chainObjects, matches func(name string) bool) error {
		for _, name := range o.names {
			if !matches(name) {
				continue
			}
			if err := store.Delete(ctx, plane.prefix()+o.chain.Name+"/"+name); err != nil {
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
	for i, o := range objects {
		if o.chain.BadOrder != nil {
			note(o.chain.BadOrder)
		} else if slices.Contains(o.names, manifestObject) {
			finished, chains = append(finished, o), append(chains, o.chain)
		} else if ages[i] > KeepLocked(store, 24*time.Hour) {
			if err := remove(o, anything); err != nil {
				note(err)
			}
		}
	}
	r.Whole = KeepLocked(store, r.Whole)
	for i, decision := range r.Decide(chains, now) {
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
