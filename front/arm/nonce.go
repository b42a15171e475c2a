package arm

import (
	"crypto/sha256"
	"sync"
	"time"
)

// nonces remembers the signed requests that a process has taken, for at least as long as they are
// valid. Several goroutines may use it.
type nonces struct {
	now func() time.Time

	mu            sync.Mutex
	begun         time.Time // when current began
	current, last map[[sha256.Size]byte]struct{}
}

const (
	// nonceMemory is the least time for which a nonce is remembered.
	nonceMemory = popLifetime + 2*tokenLeeway
	// maxNonces bounds the memory of one period, some 50 MB. A process that has taken so many refuses more.
	maxNonces = 500_000
)

func newNonces(now func() time.Time) *nonces {
	return &nonces{now: now, begun: now(), current: map[[sha256.Size]byte]struct{}{}}
}

// use reports whether a request is new, and remembers it.
func (n *nonces) use(digest [sha256.Size]byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.now(); now.Sub(n.begun) > nonceMemory {
		n.last = n.current
		if now.Sub(n.begun) > 2*nonceMemory {
			n.last = nil
		}
		n.current, n.begun = map[[sha256.Size]byte]struct{}{}, now
	}
	_, isKnown := n.current[digest]
	_, wasKnown := n.last[digest]
	if isKnown || wasKnown || len(n.current) >= maxNonces {
		return false
	}
	n.current[digest] = struct{}{}
	return true
}
