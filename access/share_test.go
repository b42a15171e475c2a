package access

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

// countedSignatures implements Signatures by memory, and counts the calls.
type countedSignatures struct {
	calls atomic.Int64
	used  map[[32]byte]bool
}

func (s *countedSignatures) Use(_ context.Context, p Proof) error {
	s.calls.Add(1)
	if s.used[p.Signature] {
		return ErrUsed
	}
	s.used[p.Signature] = true
	return nil
}

// refusingPolicy allows nothing.
type refusingPolicy struct{}

func (refusingPolicy) Decide(context.Context, Question) (Grant, error) {
	return Grant{}, refuse(AccessDenied, "no policy permits it")
}

// Only a mutation that the policy allows, and that a handler executes, uses its signature. So neither
// accounts without rights nor paths without a handler fill the table.
func TestOnlyAnAllowedMutationUsesItsSignature(t *testing.T) {
	for name, tc := range map[string]struct {
		policy Policy
		target string
		status int
		calls  int64
	}{
		"denied":          {refusingPolicy{}, "/x", http.StatusForbidden, 0},
		"no route":        {nil, "/nothing/here", http.StatusNotFound, 0},
		"denied no route": {refusingPolicy{}, "/nothing/here", http.StatusForbidden, 0},
		"allowed":         {nil, "/x", http.StatusOK, 1},
	} {
		signatures := &countedSignatures{used: map[[32]byte]bool{}}
		rt := NewRouter(Options{Log: quiet, Signatures: signatures, Policy: tc.policy,
			Identifier: &Verifier{Region: testRegion, Keys: testKeys()}})
		rt.Handle(Route{"POST", "/x", "DoAnything", "Region", "", Customers},
			func(http.ResponseWriter, *http.Request) error { return nil })
		w := serve(rt, signedNow(t, "POST", tc.target, "{}")())
		if w.Code != tc.status || signatures.calls.Load() != tc.calls {
			t.Errorf("%s: %d, %d signatures used", name, w.Code, signatures.calls.Load())
		}
	}
}

// An account has a tenth of the signatures that are remembered. Over it, the account is answered 429,
// and others are not.
func TestAnAccountHasAShareOfTheSignatures(t *testing.T) {
	u := openSignatures(t, pgtest.DSN(t))
	u.limit = 30
	end := time.Now().Add(time.Minute)
	use := func(n byte, of cluster.Account) error {
		return u.Use(t.Context(), Proof{Signature: [32]byte{n}, ValidUntil: end, Account: of})
	}
	for n := range byte(3) {
		if err := use(n, "000000000002"); err != nil {
			t.Fatal(err)
		}
	}
	for i, counted := range []string{"by this process", "by the database"} {
		if err := use(9, "000000000002"); !errors.Is(err, ErrAccountFull) {
			t.Errorf("over the share, counted %s: %v", counted, err)
		}
		if err := use(byte(10+i), account); err != nil {
			t.Errorf("another account, counted %s: %v", counted, err)
		}
		if err := u.forget(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if u.remembered != 5 {
		t.Errorf("%d signatures of all accounts are counted", u.remembered)
	}
	var handled atomic.Int64
	w := serve(replica(failingSignatures{ErrAccountFull}, &handled), signedNow(t, "POST", "/x", "{}")())
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "60" || handled.Load() != 0 ||
		!strings.Contains(w.Body.String(), account) {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// A captured mutation that is sent again and again takes neither the rate of its account nor, after
// the first time, a transaction.
func TestReplaysTakeNoRate(t *testing.T) {
	signatures := &countedSignatures{used: map[[32]byte]bool{}}
	rates := map[Class]Rate{}
	for class := range DefaultRates {
		rates[class] = Rate{PerSecond: 1e-6, Burst: 100}
	}
	stack := func() (http.Handler, *Limiter) {
		limiter := NewLimiter(Limits{Rates: rates})
		rt := NewRouter(Options{Log: quiet, Signatures: signatures, Limiter: limiter,
			Identifier: &Verifier{Region: testRegion, Keys: testKeys()}})
		handleEverything(rt, func(http.ResponseWriter, *http.Request) error { return nil })
		return rt, limiter
	}
	first, _ := stack()
	again := signedNow(t, "POST", "/x", "{}")
	if w := serve(first, again()); w.Code != http.StatusOK || w.Header().Get("X-Ratelimit-Remaining") != "99" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	second, limiter := stack() // another replica learns from the database that the signature is used
	for range 500 {
		for _, h := range []http.Handler{first, second} {
			w := serve(h, again())
			if w.Code != http.StatusForbidden || w.Header().Get("X-Ratelimit-Remaining") == "" ||
				!strings.Contains(w.Body.String(), string(SignatureUsed)) {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
	}
	if calls := signatures.calls.Load(); calls != 2 {
		t.Errorf("%d transactions", calls)
	}
	if b := limiter.buckets[bucketKey{account, Writes}]; b.spent != 0 {
		t.Errorf("%v tokens of the second replica are to be deducted", b.spent)
	}
	for replica, h := range map[string]http.Handler{"98": first, "99": second} {
		if w := serve(h, signedNow(t, "POST", "/y/"+replica, "{}")()); w.Code != http.StatusOK ||
			w.Header().Get("X-Ratelimit-Remaining") != replica {
			t.Errorf("after 500 replays: %d %v", w.Code, w.Header())
		}
	}
}

// The memory of used signatures is bounded, and forgets the oldest first.
func TestTheMemoryOfUsedSignaturesIsBounded(t *testing.T) {
	s := newRecentSignatures()
	of := func(n int) [32]byte { return [32]byte{byte(n), byte(n >> 8), byte(n >> 16)} }
	for n := range maxRecent + 10 {
		s.add(of(n))
		s.add(of(n))
	}
	if len(s.has) != maxRecent || len(s.ring) != maxRecent || s.contains(of(9)) || !s.contains(of(10)) ||
		!s.contains(of(maxRecent+9)) {
		t.Errorf("%d are remembered", len(s.has))
	}
}
