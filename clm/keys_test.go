package clm

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// fakeIssuer is an issuer with keys. Its load fails with err if err is set, and waits for release if release is
// set.
type fakeIssuer struct {
	ids     []string
	err     error
	release chan struct{}
	loads   atomic.Int32
}

func (f *fakeIssuer) load(context.Context) ([]jose.JSONWebKey, error) {
	f.loads.Add(1)
	if f.release != nil {
		<-f.release
	}
	if f.err != nil {
		return nil, f.err
	}
	var set []string
	for _, id := range f.ids {
		set = append(set, rsaJWK(id, &rsa.PublicKey{N: big.NewInt(1<<40 + 1), E: 65537}, ""))
	}
	return parseKeys([]byte(`{"keys":[` + strings.Join(set, ",") + `]}`))
}

// rsaJWK returns a key of a JWK set as JSON, with further members.
func rsaJWK(id string, key *rsa.PublicKey, members string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"kty":"RSA","kid":%q,"n":%q,"e":%q%s}`, id, encode(key.N.Bytes()),
		encode(big.NewInt(int64(key.E)).Bytes()), members)
}

// The cache loads keys for the first token, for unknown keys at most once in keysPause, and again after
// keysFresh. Known keys stay while the issuer cannot be reached.
func TestKeysAreLoadedForTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issuer := &fakeIssuer{ids: []string{"k1"}}
		keys := newKeyCache(issuer.load)
		step := func(what, id string, wantLoads int32, wantError error) {
			t.Helper()
			key, err := keys.find(t.Context(), id)
			if !errors.Is(err, wantError) || err == nil && key.KeyID != id {
				t.Errorf("%s: key %q, %v; want %v", what, key.KeyID, err, wantError)
			}
			if n := issuer.loads.Load(); n != wantLoads {
				t.Errorf("%s: %d loads, want %d", what, n, wantLoads)
			}
		}
		if n := issuer.loads.Load(); n != 0 {
			t.Fatalf("%d loads before the first token", n)
		}
		step("the first token", "k1", 1, nil)
		step("the second token", "k1", 1, nil)
		step("an unknown key within the pause", "k2", 1, errUnknownKey)
		<-time.After(keysPause + time.Second)
		issuer.ids = []string{"k2"}
		step("an unknown key after the pause", "k2", 2, nil)
		step("a key that the issuer has revoked", "k1", 2, errUnknownKey)

		<-time.After(keysFresh + time.Second)
		issuer.err = errors.New("the issuer is down")
		step("old keys while the issuer is down", "k2", 3, nil)
		<-time.After(keysPause + time.Second)
		step("an unknown key while the issuer is down", "k3", 4, errUnknownKey)
		<-time.After(keysPause + time.Second)
		issuer.err, issuer.ids = nil, []string{"k3"}
		step("old keys after the issuer's return", "k3", 5, nil)
	})
}

// Without any known key each verification tries to load, because no token can be verified.
func TestKeysAreRetriedAtOnceIfNoneIsKnown(t *testing.T) {
	issuer := &fakeIssuer{ids: []string{"k1"}, err: errors.New("the issuer is down")}
	keys := newKeyCache(issuer.load)
	for range 2 {
		if _, err := keys.find(t.Context(), "k1"); !errors.Is(err, errKeys) {
			t.Errorf("%v, want %v", err, errKeys)
		}
	}
	issuer.err = nil
	if _, err := keys.find(t.Context(), "k1"); err != nil {
		t.Error(err)
	}
	is(t, "the number of loads", fmt.Sprint(issuer.loads.Load()), "3")
}

// All tokens with a new key wait for one load. Tokens with a known key do not wait for it.
func TestTokensWithANewKeyShareOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issuer := &fakeIssuer{ids: []string{"k1"}}
		keys := newKeyCache(issuer.load)
		if _, err := keys.find(t.Context(), "k1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(keysPause + time.Second)
		issuer.ids, issuer.release = []string{"k1", "k2"}, make(chan struct{})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, err := keys.find(t.Context(), "k2"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all of them wait for the load
		if _, err := keys.find(t.Context(), "k1"); err != nil {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := keys.find(ended, "k2"); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled request waits for the load: %v", err)
		}
		close(issuer.release)
		all.Wait()
		is(t, "the number of loads", fmt.Sprint(issuer.loads.Load()), "2")
	})
}

// A key set yields its RSA signature keys. An unusable key does not disable the others.
func TestKeySetsYieldTheirUsableKeys(t *testing.T) {
	key := newKey(t).PublicKey
	jwk := func(id, members string) string { return rsaJWK(id, &key, members) }
	for name, c := range map[string]struct {
		set  []string
		want []string
	}{
		"plain, with use and with alg": {[]string{jwk("a", ""), jwk("b", `,"use":"sig"`), jwk("c", `,"alg":"RS256"`)},
			[]string{"a", "b", "c"}},
		"for encryption":               {[]string{jwk("a", `,"use":"enc"`), jwk("b", "")}, []string{"b"}},
		"of another algorithm":         {[]string{jwk("a", `,"alg":"RS512"`), jwk("b", "")}, []string{"b"}},
		"of another type":              {[]string{`{"kty":"EC","kid":"a"}`, jwk("b", "")}, []string{"b"}},
		"without modulus":              {[]string{`{"kty":"RSA","kid":"a","e":"AQAB"}`, jwk("b", "")}, []string{"b"}},
		"with a broken certificate":    {[]string{jwk("a", `,"x5c":["eA=="]`), jwk("b", "")}, []string{"b"}},
		"a secret":                     {[]string{`{"kty":"oct","kid":"a","k":"eA"}`}, nil},
		"an empty set":                 {nil, nil},
		"only a key without a modulus": {[]string{`{"kty":"RSA","kid":"a","e":"AQAB"}`}, nil},
	} {
		keys, err := parseKeys([]byte(`{"keys":[` + strings.Join(c.set, ",") + `]}`))
		var ids []string
		for _, k := range keys {
			ids = append(ids, k.KeyID)
			if public, ok := k.Key.(*rsa.PublicKey); !ok || !public.Equal(&key) {
				t.Errorf("%s: key %s is %T", name, k.KeyID, k.Key)
			}
		}
		if !slices.Equal(ids, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: keys %v, %v; want %v", name, ids, err, c.want)
		}
	}
	if _, err := parseKeys([]byte("no JSON")); err == nil {
		t.Error("a text that is no JSON yields keys")
	}
}

// An answer that is no key set, that is too long, or that redirects to a URL without TLS yields no keys.
func TestAnswersOfIssuersWithoutKeys(t *testing.T) {
	good := keySet(t, "k1", &newKey(t).PublicKey)
	long, err := json.Marshal(strings.Repeat("x", maxKeySet))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			w.Write(good)
		case "/moved":
			http.Redirect(w, r, "/good", http.StatusFound)
		case "/insecure":
			http.Redirect(w, r, "http://keys.example.com/", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/error":
			w.WriteHeader(http.StatusInternalServerError)
			w.Write(good)
		case "/long":
			w.Write([]byte(`{"padding":`))
			w.Write(long)
			w.Write([]byte(`,` + string(good[1:])))
		}
	}))
	defer srv.Close()
	for path, want := range map[string]string{
		"/good": "", "/moved": "", "/insecure": "neither https nor on loopback", "/loop": "redirects",
		"/error": "500", "/long": "more than", "/empty": "reading a key set",
	} {
		i, err := newIssuer(Issuer{IssuerURL: "https://one", JWKCertURL: srv.URL + path})
		if err != nil {
			t.Fatal(err)
		}
		keys, err := i.loadKeys(t.Context())
		switch {
		case want == "" && (err != nil || len(keys) != 1):
			t.Errorf("%s: %d keys, %v", path, len(keys), err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want an error with %q", path, err, want)
		}
	}
}
