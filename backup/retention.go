package backup

import (
	"slices"
	"time"
)

// Retention says which chains are kept. A chain is whole (any second of it can be restored), or only its snapshot is
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
