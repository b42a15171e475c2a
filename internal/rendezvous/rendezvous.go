// Package rendezvous divides slots among members by highest random weight: each member has a weight for each slot, and the
// member with the highest one should hold it. All who know the same members come to the same division, and a member that
// comes or goes moves its own slots only.
//
// Whoever holds a slot by a lease decides when it changes hands; this package says only who should have it. It imports
// nothing of Atoll.
package rendezvous

import (
	"bytes"
	"crypto/sha256"
)

// Owner returns the member that should hold a slot. text names the slot and a member together; it must be different for
// each member, and the same for the same member everywhere and for all time. The order of members does not matter. ok is
// false when there is no member.
func Owner[M any](members []M, text func(M) string) (owner M, ok bool) {
	var most [sha256.Size]byte
	for _, m := range members {
		weight := sha256.Sum256([]byte(text(m)))
		if !ok || bytes.Compare(weight[:], most[:]) > 0 {
			owner, most, ok = m, weight, true
		}
	}
	return owner, ok
}
