package access

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/client"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
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
		caller   func(t *testing.T) Identity
		after    time.Duration
		wantText string
	}{
		"a presigned URL": {func(t *testing.T) Identity { return presigned(t, time.Time{}) }, 10 * time.Minute, "presigned"},
		"a presigned URL of longer credentials": {func(t *testing.T) Identity {
			return presigned(t, time.Now().Add(time.Hour))
		}, 10 * time.Minute, "presigned"},
		"a presigned URL of shorter credentials": {func(t *testing.T) Identity {
			return presigned(t, time.Now().Add(time.Minute))
		}, time.Minute, "credentials"},
		"the gateway": {func(t *testing.T) Identity {
			return identify(t, &CombinedIdentifier{Signatures: testVerifier(), Gateway: newTestGateway(t)},
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
				if after != tc.after || codeOf(cause) != ExpiredCredentials ||
					!strings.Contains(cause.Error(), tc.wantText) {
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

// A watch of a linked identity ends with its token, with its link, and when the identity has another principal.
func TestAWatchEndsWithItsTokenOrLink(t *testing.T) {
	issuer, o, _ := startIssuer(t, []string{oidcClient}, nil)
	_, k, _ := startLinks(t)
	if err := k.PutAccount(t.Context(), Account{account, true}); err != nil {
		t.Fatal(err)
	}
	way := *o
	way.options.Links = k
	link := func(principal string) Link {
		t.Helper()
		person := personWith(oidcSubject, newCode(t, k, LinkCode{Principal: policy.Principal(principal)}))
		person.Principal, person.Evidence.Issuer = policy.Principal(principal), issuer.URL
		l, err := k.Directory().RedeemLink(t.Context(), person)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	watch := func(token string) (*http.Response, func() (rest.Event, error)) {
		t.Helper()
		by := &CombinedIdentifier{Signatures: testVerifier(), Bearers: []BearerVerifier{&way}}
		return watchBy(t, k, by, func(r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+token)
			return nil
		})
	}
	wantEnd := func(name string, next func() (rest.Event, error), code Code) {
		t.Helper()
		e, err := next()
		if err != nil || e.Type != rest.Failed || !strings.Contains(string(e.Object), `"`+string(code)+`"`) {
			t.Errorf("%s: %+v %v", name, e, err)
		}
		if _, err := next(); err == nil {
			t.Errorf("%s: the stream goes on", name)
		}
	}
	of := link(oidcUser)
	eventually(t, k, "the link", func() bool {
		l, known, _ := k.Link(issuer.URL, oidcSubject)
		return known && l.Privileged
	})

	claims := issuer.Claims(oidcSubject)
	for left := 2 * time.Second; ; left *= 2 { // a machine that is too slow for a short token gets a longer one
		claims["exp"] = time.Now().Add(left - oidcLeeway).Unix()
		answer, next := watch(issuer.Token(claims))
		if answer.StatusCode == http.StatusUnauthorized && left < time.Minute {
			continue
		}
		if answer.StatusCode != http.StatusOK {
			t.Fatal(answer.Status)
		}
		wantEnd("the token", next, ExpiredCredentials)
		break
	}

	token := issuer.Token(issuer.Claims(oidcSubject))
	_, next := watch(token)
	if err := k.Directory().DeleteLink(t.Context(), account, of.ID); err != nil {
		t.Fatal(err)
	}
	wantEnd("the link", next, NotLinked)

	// A process that has missed the removal of a link reads the next link of the identity at once.
	of = link(oidcUser)
	_, next = watch(token)
	k.cache.mu.Lock()
	other := k.cache.state.links[of.ID]
	other.link.Principal = "arn:aws:iam::123456789012:user/boss"
	k.cache.state.links[of.ID] = other
	k.cache.endWatchers(k.cache.refusalOf) // as after each change
	k.cache.mu.Unlock()
	wantEnd("another principal", next, NotLinked)
}

// watchOf starts a front whose only route is a watch, and opens one with a key.
func watchOf(t *testing.T, k *KeyStore, c client.Credentials) (*http.Response, func() (rest.Event, error)) {
	t.Helper()
	return watchBy(t, k, &Verifier{Region: testRegion, Keys: k}, func(r *http.Request) error {
		return client.Sign(r, nil, c, time.Now())
	})
}

// watchBy starts a front whose only route is a watch, and opens one with a request that prove has completed.
func watchBy(t *testing.T, k *KeyStore, identifier Identifier, prove func(*http.Request) error) (*http.Response,
	func() (rest.Event, error)) {
	t.Helper()
	rt := NewRouter(Options{Log: quiet, Identifier: identifier, Validity: k})
	rt.Handle(Route{"GET", "/watch", "ListThings", "Region", "", Customers}, func(w http.ResponseWriter,
		r *http.Request) error {
		return rest.Watch(w, r, rest.WatchOptions{}, func(ctx context.Context, s *rest.Stream) error {
			if err := s.Open("c1"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	server := httptest.NewServer(rest.Observe(rest.Options{Log: quiet, ErrorBody: rest.PlatformError}, rt))
	t.Cleanup(server.Close)
	r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := prove(r); err != nil {
		t.Fatal(err)
	}
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	events := json.NewDecoder(answer.Body)
	return answer, func() (e rest.Event, err error) { err = events.Decode(&e); return e, err }
}

// Disabling or deleting a key in one process ends the watches of the key in another one.
func TestAWatchEndsWithItsKey(t *testing.T) {
	dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "key")
	here := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{})
	there := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{})
	if err := here.PutAccount(t.Context(), Account{account, true}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		end  func(id string) error
		code Code
	}{
		"disabled": {func(id string) error { _, err := here.Disable(t.Context(), id); return err }, DisabledKey},
		"deleted":  {func(id string) error { return here.Delete(t.Context(), id) }, DeletedKey},
	} {
		pair, secret, err := here.Create(t.Context(), account, principal)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, there, "the key is known", func() bool {
			key, known, _ := there.Lookup(pair.AccessKeyID)
			return known && key.Privileged
		})
		answer, next := watchOf(t, there, client.Credentials{AccessKeyID: pair.AccessKeyID, SecretAccessKey: secret,
			Region: testRegion})
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", name, answer.Status)
		}
		if err := tc.end(pair.AccessKeyID); err != nil {
			t.Fatal(err)
		}
		e, err := next()
		if err != nil || e.Type != rest.Failed || !strings.Contains(string(e.Object), `"`+string(tc.code)+`"`) {
			t.Errorf("%s: %+v %v", name, e, err)
		}
		if _, err := next(); err == nil {
			t.Errorf("%s: the stream goes on", name)
		}
	}
	there.cache.mu.Lock()
	defer there.cache.mu.Unlock()
	if len(there.cache.watchers) != 0 {
		t.Errorf("watchers are left: %v", there.cache.watchers)
	}
}

// A watch of temporary credentials ends when they expire.
func TestAWatchEndsWhenItsCredentialsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := newWatchLease()
		defer l.end()
		begun := time.Now()
		l.open(nil, Identity{Evidence: Evidence{Until: begun.Add(time.Hour)}}, cancel)
		l.open(nil, Identity{Evidence: Evidence{Until: begun.Add(time.Hour)}}, cancel) // the second changes nothing
		<-ctx.Done()
		if after := time.Since(begun); after != time.Hour || codeOf(context.Cause(ctx)) != ExpiredCredentials {
			t.Errorf("after %s: %v", after, context.Cause(ctx))
		}
	})
}
