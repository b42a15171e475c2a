package store

import "slices"

// replay keeps the last rounds of a feed in memory, bounded by their changes and bytes. A watch
// that continues from a cursor within these rounds does not read the database. One goroutine at a
// time may use a replay; others may read the rounds that it returned, which it never modifies.
type replay struct {
	maxChanges, maxBytes int

	// base is where the oldest round begins: for each change that base does not see, the rounds
	// have the document in that state or a newer one. With a zero base, replay covers no cursor.
	base           position
	rounds         []Round
	dropped        int // how many rounds at the front of the slice are dropped
	changes, bytes int // of the rounds that are not dropped
}

// begin drops all rounds: the feed continues from this position.
func (r *replay) begin(at position) {
	*r = replay{maxChanges: r.maxChanges, maxBytes: r.maxBytes, base: at}
}

// add adds the next round of the feed, and drops the oldest rounds above the bounds.
func (r *replay) add(round Round) {
	if len(round.Changes) == 0 {
		return
	}
	r.rounds = append(r.rounds, round)
	r.changes += len(round.Changes)
	r.bytes += round.size
	for r.dropped < len(r.rounds) && (r.changes > r.maxChanges || r.bytes > r.maxBytes) {
		oldest := r.rounds[r.dropped]
		r.base = oldest.at
		r.changes -= len(oldest.Changes)
		r.bytes -= oldest.size
		r.dropped++
	}
	// Watches may still read the array, so replay makes a new one. Memory may be twice the bounds.
	if r.dropped > len(r.rounds)/2 {
		r.rounds, r.dropped = append([]Round(nil), r.rounds[r.dropped:]...), 0
	}
}

// since returns rounds with all changes that the cursor does not see, and perhaps others. ok is
// false when the cursor is older than the rounds, or from another incarnation of the database.
func (r *replay) since(cursor position) (rounds []Round, ok bool) {
	if !r.base.isCoveredBy(cursor) {
		return nil, false
	}
	first := len(r.rounds)
	for first > r.dropped && !r.rounds[first-1].at.isCoveredBy(cursor) {
		first--
	}
	return r.rounds[first:len(r.rounds):len(r.rounds)], true
}

// changesAfter returns the latest change of each document that matches, among the changes that the
// cursor does not see.
func changesAfter(rounds []Round, cursor position, match func(*Change) bool) []*Change {
	var latest []*Change
	seen := map[docKey]struct{}{}
	for i := len(rounds) - 1; i >= 0; i-- {
		for j := len(rounds[i].Changes) - 1; j >= 0; j-- {
			c := rounds[i].Changes[j]
			if cursor.sees(c.xid) || !match(c) {
				continue
			}
			key := docKey{c.Kind, c.ID}
			if _, newer := seen[key]; !newer {
				seen[key] = struct{}{}
				latest = append(latest, c)
			}
		}
	}
	slices.Reverse(latest)
	return latest
}
