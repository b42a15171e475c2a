package store

import "slices"

// replay keeps the last rounds of a feed in memory, bounded by their changes and bytes. A watch that continues from a
// cursor within them reads no database. It is not safe for concurrent use; the rounds that it returns are never written
// again.
type replay struct {
	maxChanges, maxBytes int

	// base is where the oldest round begins: a round has each document that a transaction changed which base does not
	// see, in a state at least as new. Without a snapshot, replay covers no cursor.
	base           position
	rounds         []Round
	dropped        int // how many rounds at the front are dropped; the array still has them
	changes, bytes int
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
	// The array is replaced and not written, because watches that are about to begin read the old one. So memory may be
	// twice the bounds.
	if r.dropped > len(r.rounds)/2 {
		r.rounds, r.dropped = append([]Round(nil), r.rounds[r.dropped:]...), 0
	}
}

// since returns rounds that have all changes that the cursor does not see, and perhaps more. It returns false when the
// cursor is older than the rounds, or of another incarnation of the database.
func (r *replay) since(cursor position) ([]Round, bool) {
	if !r.base.within(cursor) {
		return nil, false
	}
	first := len(r.rounds)
	for first > r.dropped && !r.rounds[first-1].at.within(cursor) {
		first--
	}
	return r.rounds[first:len(r.rounds):len(r.rounds)], true
}

// changesAfter returns, of each document that matches, the latest change that the cursor does not see.
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
