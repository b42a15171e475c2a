package store

import "slices"

// replay is the recent past of a feed in memory: its last rounds, bounded by their changes and bytes. A watch that
// continues from a cursor in it needs nothing of the database. It is not safe for concurrent use; the rounds that it
// returns are never written again.
type replay struct {
	maxChanges, maxBytes int

	// base is where the oldest round begins: each document that changed later than base sees is in a round, in a state
	// at least as new. No snapshot: nothing is known.
	base           position
	rounds         []Round
	dropped        int // rounds at the front that were dropped; the array still has them
	changes, bytes int
}

// begin forgets everything: the feed goes on from this position.
func (r *replay) begin(at position) {
	*r = replay{maxChanges: r.maxChanges, maxBytes: r.maxBytes, base: at}
}

// add adds the feed's next round, and drops old ones that are too many.
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
	// The array is replaced, not written: watches that are about to begin read the old one. So up to twice the bounds
	// are held.
	if r.dropped > len(r.rounds)/2 {
		r.rounds, r.dropped = append([]Round(nil), r.rounds[r.dropped:]...), 0
	}
}

// since returns the rounds that have everything that changed later than the cursor sees, and perhaps more. False: the
// cursor is older than what is remembered, or of another life of the database.
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

// missed returns the latest state of each document that the rounds changed later than the cursor sees, and that match.
func missed(rounds []Round, cursor position, match func(*Change) bool) []*Change {
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
