// Package rendezvous divides slots among members by highest random weight: each member has a weight for
// each slot, and the member with the highest weight should hold the slot. All processes that know the
// same members compute the same division, and when a member joins or leaves, only its slots change.
//
// The package computes which member should hold a slot. The leases of the services that share slots (the
// lifecycle manager, the sentinel, Maestro) decide when a slot changes hands. It imports nothing of Atoll.
package rendezvous

import (
	"bytes"
	"crypto/sha256"
)

// Owner returns the member that should hold a slot; ok is false when there is no member. text returns a
// text that names the slot and a member together: it differs between members, and is the same for one
// member in every process and release. The order of members does not matter.
func Owner[M any](members []M, text func(M) string) (owner M, ok bool) {
	var highest [sha256.Size]byte
	for _, m := range members {
		weight := sha256.Sum256([]byte(text(m)))
		if !ok || bytes.Compare(weight[:], highest[:]) > 0 {
			owner, highest, ok = m, weight, true
		}
	}
	return owner, ok
}
