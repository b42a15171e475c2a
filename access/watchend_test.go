package access

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A watch ends with the proof of its caller, and its last event says which proof.
func TestAWatchEndsWithItsProof(t *testing.T) {
	identify := func(t *testing.T, i Identifier, r *http.Request) Identity {
		t.Helper()
		id, _, err := i.Identify(r)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	presigned := func(t *testing.T, expires time.Time) Identity {
		keys := testKeys()
		key := keys[testID]
		key.Expires = expires
		keys[testID] = key
		v := &Verifier{Region: testRegion, Keys: keys}
		return identify(t, v, sdkPresign(t, request(t, "GET", "/x?"+paramExpires+"=600", ""), "", time.Now()))
	}
	for name, tc := range map[string]struct {
		caller func(t *testing.T) Identity
		after  time.Duration
		says   string
	}{
		"a presigned URL": {func(t *testing.T) Identity { return presigned(t, time.Time{}) }, 10 * time.Minute, "presigned"},
		"a presigned URL of longer credentials": {func(t *testing.T) Identity {
			return presigned(t, time.Now().Add(time.Hour))
		}, 10 * time.Minute, "presigned"},
		"a presigned URL of shorter credentials": {func(t *testing.T) Identity {
			return presigned(t, time.Now().Add(time.Minute))
		}, time.Minute, "credentials"},
		"the gateway": {func(t *testing.T) Identity {
			return identify(t, &Ways{Signatures: testVerifier(), Gateway: newTestGateway(t)},
				gatewayRequest(t, "GET", "https://api.example.com/x", ""))
		}, gatewayWatch, "gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, caller := time.Now(), tc.caller(t)
				ctx, cancel := context.WithCancelCause(t.Context())
				l := newWatchLease()
				defer l.end()
				l.open(nil, caller, cancel)
				<-ctx.Done()
				after, cause := time.Since(begun), context.Cause(ctx)
				if after != tc.after || codeOf(cause) != ExpiredCredentials || !strings.Contains(cause.Error(), tc.says) {
					t.Errorf("after %s: %v", after, cause)
				}
			})
		})
	}
}

// A process that cannot read its database ends the watches whose callers have no key pair, too.
func TestAWatchWithoutAKeyEndsWhenTheStateIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeyStore(nil, nil, CacheObserver{})
		k.cache.filled = true
		k.cache.confirm(time.Now())
		defer k.cache.stopLapse()
		ended := make(chan error, 1)
		stop := k.OnInvalid(Identity{Evidence: Evidence{Method: ByGateway}}, func(cause error) { ended <- cause })
		defer stop()
		<-time.After(TrustLimit - time.Second)
		k.cache.mu.Lock()
		k.cache.endWatchers(k.cache.refusalOf) // as after each change
		k.cache.mu.Unlock()
		if len(ended) > 0 {
			t.Errorf("the watch has ended too early: %v", <-ended)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if len(ended) != 1 || codeOf(<-ended) != KeysNotReady {
			t.Error("the watch goes on")
		}
	})
}
