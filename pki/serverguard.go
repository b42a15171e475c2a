package pki

import (
	"net"
	"sync"
	"time"
)

// An address may fail failureBurst times at once, and then once per failurePace. The
// limit is not against guessing, since tokens have 256 bits: it keeps a broken client
// from filling the log and using the processor.
const (
	failureBurst = 60
	failurePace  = time.Second
	failureAddrs = 4096
)

// failures counts failed requests by address, as leaky buckets.
type failures struct {
	mu   sync.Mutex
	full map[string]time.Time // when the address's bucket will be empty
}

func newFailures() *failures { return &failures{full: map[string]time.Time{}} }

// allow reports whether an address may make another request.
func (f *failures) allow(remote string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Until(f.full[hostOf(remote)]) < failureBurst*failurePace
}

// add counts a failed request of an address.
func (f *failures) add(remote string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if len(f.full) >= failureAddrs {
		for k, t := range f.full {
			if t.Before(now) {
				delete(f.full, k)
			}
		}
		if len(f.full) >= failureAddrs {
			return
		}
	}
	t := f.full[hostOf(remote)]
	if t.Before(now) {
		t = now
	}
	f.full[hostOf(remote)] = t.Add(failurePace)
}

// hostOf returns the host of an address with port.
func hostOf(remote string) string {
	h, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return h
}
