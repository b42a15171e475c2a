package arm

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"time"

	"atoll.dev/access"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// requestDigest identifies a signed request: the digest of the thumbprint of its key and of its nonce.
type requestDigest [sha256.Size]byte

// nonces remembers the signed requests that a process has taken, for at least as long as they are
// valid. Several goroutines may use it.
type nonces struct {
	now   func() time.Time
	limit int // of each period

	mu            sync.Mutex
	begun         time.Time // when current began
	current, last map[requestDigest]struct{}
}

const (
	// nonceMemory is the least time for which a nonce is remembered.
	nonceMemory = popLifetime + 2*tokenLeeway
	// maxNonces bounds the memory of one period, some 50 MB. A process that has taken so many refuses more.
	maxNonces = 500_000
	// accountFullRetry is when an account may send again that has sent too many changes. It is that of the Platform API.
	accountFullRetry = time.Minute
)

var errUsedBefore = errors.New("it was used before")

func newNonces(now func() time.Time) *nonces {
	return &nonces{now: now, limit: maxNonces, begun: now(), current: map[requestDigest]struct{}{}}
}

// remember stores a new request. The error is errUsedBefore for a known one, and a *rest.Error when the
// memory is full.
func (n *nonces) remember(digest requestDigest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.now(); now.Sub(n.begun) > nonceMemory {
		n.last = n.current
		if now.Sub(n.begun) > 2*nonceMemory {
			n.last = nil
		}
		n.current, n.begun = map[requestDigest]struct{}{}, now
	}
	_, isKnown := n.current[digest]
	_, wasKnown := n.last[digest]
	switch {
	case isKnown || wasKnown:
		return errUsedBefore
	case len(n.current) >= n.limit:
		return unrecorded(errors.New("the process remembers as many signed requests as it may"))
	}
	n.current[digest] = struct{}{}
	return nil
}

// forget removes a request, so that it can be sent again. The request must not have been executed.
func (n *nonces) forget(digest requestDigest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.current, digest)
	delete(n.last, digest)
}

// recordUse records the use of a signed request that may change something, for all processes, in the
// share of an account. A request that any process has taken before is answered 401. Every other error
// is a *rest.Error of which the sender may try the same request again.
func (t *Tokens) recordUse(ctx context.Context, method string, digest requestDigest, account cluster.Account) error {
	if t.o.Used == nil || method == http.MethodGet {
		return nil
	}
	err := t.o.Used.Use(ctx, access.Proof{Signature: digest, Account: account,
		ValidUntil: time.Now().Add(popLifetime + tokenLeeway)})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, access.ErrUsed):
		return refuseToken(errUsedBefore)
	case errors.Is(err, access.ErrAccountFull):
		e := rest.Errorf(http.StatusTooManyRequests, codeTooManyRequests, "The account %s has changed more in half an hour "+
			"than the region takes of one account. Please wait, and change less.", account)
		e.RetryAfter = accountFullRetry
		return e
	}
	return unrecorded(err)
}

// unrecorded returns the answer to a signed request that cannot be recorded.
func unrecorded(err error) error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeUnavailable,
		"The region cannot record that this request was received, so it does not accept it now. Please retry.").Because(err)
	e.RetryAfter = time.Second
	return e
}

// isTemporary reports whether the same request may succeed later.
func isTemporary(err error) bool {
	e, isAnswer := errors.AsType[*rest.Error](err)
	return !isAnswer || e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests
}
