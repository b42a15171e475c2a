package pki

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// An address may fail failureBurst times at once, and then once in each
// failurePace. A 256-bit token cannot be guessed at any pace; the limit keeps a
// broken client from filling the log and the processor.
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

func (f *failures) allow(remote string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Until(f.full[host(remote)]) < failureBurst*failurePace
}

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
	t := f.full[host(remote)]
	if t.Before(now) {
		t = now
	}
	f.full[host(remote)] = t.Add(failurePace)
}

func host(remote string) string {
	h, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return h
}

// selfCertificate is the signing service's own certificate, which it issues
// itself. The key lives in memory only.
type selfCertificate struct {
	ca *CA

	mu   sync.Mutex
	cert *tls.Certificate
}

func (s *selfCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert != nil && time.Now().Before(renewAt(s.cert.Leaf)) {
		return s.cert, nil
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := s.ca.issue(&key.PublicKey, ServiceName("pki"))
	if err != nil {
		return nil, err
	}
	if s.cert, err = newTLSCertificate(der, key); err != nil {
		return nil, err
	}
	return s.cert, nil
}
