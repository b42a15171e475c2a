package arm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"atoll.dev/internal/rest"
)

// TestAFullMemoryOfNoncesIsUnavailable checks that a process that can remember no more requests says so, and still
// knows the requests that it remembers.
func TestAFullMemoryOfNoncesIsUnavailable(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	n := newNonces(func() time.Time { return now })
	n.limit = 2
	one, two, three := requestDigest{1}, requestDigest{2}, requestDigest{3}
	if err := errors.Join(n.remember(one), n.remember(two)); err != nil {
		t.Fatal(err)
	}
	if err := n.remember(one); !errors.Is(err, errUsedBefore) {
		t.Errorf("a known request: %v", err)
	}
	e, isAnswer := errors.AsType[*rest.Error](n.remember(three))
	if !isAnswer || e.Status != http.StatusServiceUnavailable || e.RetryAfter == 0 {
		t.Errorf("a full memory: %v", e)
	}
	n.forget(two)
	if err := n.remember(three); err != nil {
		t.Errorf("a memory with room: %v", err)
	}
	now = now.Add(nonceMemory + time.Second)
	if err := errors.Join(n.remember(two), n.remember(requestDigest{4})); err != nil {
		t.Errorf("the next period: %v", err)
	}
	if err := n.remember(three); !errors.Is(err, errUsedBefore) {
		t.Errorf("a request of the last period: %v", err)
	}
	n.forget(three)
	n.forget(two)
	if err := n.remember(three); err != nil {
		t.Errorf("a forgotten request of the last period: %v", err)
	}
}

// TestOnlyKeysWithBoundedCostProveARequest checks which public keys a sender may use. The check of a signature by a
// long key takes long.
func TestOnlyKeysWithBoundedCostProveARequest(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ofRSA := func(bits uint, exponent int) *rsa.PublicKey {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: exponent}
	}
	for name, c := range map[string]struct {
		key  any
		want bool
	}{
		"P-256":             {&key.PublicKey, true},
		"a private key":     {key, false},
		"a symmetric key":   {[]byte("k"), false},
		"2047 bits":         {ofRSA(2047, 65537), false},
		"2048 bits":         {ofRSA(2048, 65537), true},
		"4096 bits":         {ofRSA(4096, 3), true},
		"4097 bits":         {ofRSA(4097, 65537), false},
		"65536 bits":        {ofRSA(65536, 65537), false},
		"the exponent 1":    {ofRSA(2048, 1), false},
		"an even exponent":  {ofRSA(2048, 65536), false},
		"a large exponent":  {ofRSA(2048, 1<<31-1), true},
		"a larger exponent": {ofRSA(2048, 1<<31+1), false},
		"no exponent":       {ofRSA(2048, 0), false},
		"a negative one":    {ofRSA(2048, -3), false},
	} {
		if got := isStrongPublicKey(jose.JSONWebKey{Key: c.key}); got != c.want {
			t.Errorf("%s: %t, not %t", name, got, c.want)
		}
	}
}

// TestTheSearchOfClustersHasOneText checks that equal searches have equal SQL: statement caches keep it by its text.
func TestTheSearchOfClustersHasOneText(t *testing.T) {
	texts := map[string]bool{}
	for range 50 {
		filter, err := clusterSearch().Parse("state='ready' and status.state='ready'")
		if err != nil {
			t.Fatal(err)
		}
		texts[filter.SQL().SQL] = true
	}
	if len(texts) != 1 {
		t.Errorf("%d texts", len(texts))
	}
}
