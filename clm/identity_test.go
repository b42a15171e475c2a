package clm

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"atoll.dev/internal/rest"
	"atoll.dev/test/testsite"
)

// keySet is an issuer's keys, as it serves them.
func keySet(t *testing.T, id string, key *rsa.PublicKey) []byte {
	t.Helper()
	set, err := json.Marshal(map[string]any{"keys": []any{
		map[string]string{"kty": "EC", "kid": "other"},
		map[string]string{"kty": "RSA", "kid": id, "n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func token(t *testing.T, key any, id string, method jwt.SigningMethod, claims jwt.MapClaims) string {
	t.Helper()
	tok := jwt.NewWithClaims(method, claims)
	if id != "" {
		tok.Header["kid"] = id
	}
	text, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + text
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*rest.Error](err); ok {
		return e.Code
	}
	return ""
}

// CLM accepts only tokens of configured issuers (I10).
func TestI10Tokens(t *testing.T) {
	key, stranger, rotated := newKey(t), newKey(t), newKey(t)
	served := keySet(t, "k1", &key.PublicKey)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(served) }))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, keySet(t, "f1", &stranger.PublicKey), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := NewTokens([]Issuer{
		{IssuerURL: "https://one", JWKCertURL: srv.URL, Audience: "clm", IdentityClaimPattern: `@example\.com$`},
		{IssuerURL: "https://two", JWKCertFile: file, IdentityClaim: "sub", IdentityHeader: "X-Who"},
		{IssuerURL: "https://strict", JWKCertFile: file, IdentityClaimPattern: `@example\.com$`, IdentityRequired: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := &Identity{Tokens: tokens}
	soon := time.Now().Add(time.Minute).Unix()
	good := jwt.MapClaims{"iss": "https://one", "aud": "clm", "email": "a@example.com", "exp": soon}
	with := func(name string, value any) jwt.MapClaims {
		c := jwt.MapClaims{}
		for k, v := range good {
			c[k] = v
		}
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return c
	}
	rs := jwt.SigningMethodRS256
	for _, c := range []struct {
		name, header string
		more         string
		want, code   string
	}{
		{"good", token(t, key, "k1", rs, good), "", "a@example.com", ""},
		{"another issuer", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://two", "sub": "bob", "exp": soon}),
			"", "bob", ""},
		{"that lets callers name themselves", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://two",
			"sub": "bob", "exp": soon}), "carol", "carol", ""},
		{"which the first does not", token(t, key, "k1", rs, good), "carol", "a@example.com", ""},
		{"none", "", "", "", codeNoIdentity},
		{"of a scheme in lower case", strings.Replace(token(t, key, "k1", rs, good), "Bearer", "bearer", 1), "",
			"a@example.com", ""},
		{"without scheme", strings.TrimPrefix(token(t, key, "k1", rs, good), "Bearer "), "", "", codeBadToken},
		{"of another scheme", strings.Replace(token(t, key, "k1", rs, good), "Bearer", "Basic", 1), "", "",
			codeBadToken},
		{"without key id", token(t, key, "", rs, good), "", "a@example.com", ""},
		{"without key id, by another key", token(t, stranger, "", rs, good), "", "", codeBadToken},
		{"a long name", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://two", "sub": strings.Repeat(
			"x", 257), "exp": soon}), "", "", ""},
		{"a control character", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://two", "sub": "a\x1fb",
			"exp": soon}), "", "", ""},
		{"a long name in the header", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://two", "sub": "bob",
			"exp": soon}), strings.Repeat("x", 257), "", ""},
		{"no name", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://two",
			"exp": soon}), "", "", ""},
		{"no token", "Bearer x", "", "", codeBadToken},
		{"expired", token(t, key, "k1", rs, with("exp", time.Now().Add(-time.Minute).Unix())), "", "", codeExpired},
		{"just expired", token(t, key, "k1", rs, with("exp", time.Now().Add(-time.Second).Unix())), "",
			"a@example.com", ""},
		{"without end", token(t, key, "k1", rs, with("exp", nil)), "", "", codeBadToken},
		{"for others", token(t, key, "k1", rs, with("aud", "x")), "", "", codeBadToken},
		{"of a stranger", token(t, key, "k1", rs, with("iss", "https://three")), "", "", codeBadToken},
		{"by another key", token(t, stranger, "k1", rs, good), "", "", codeBadToken},
		{"by an unknown key", token(t, key, "k9", rs, good), "", "", codeBadToken},
		{"by the key of another issuer", token(t, stranger, "f1", rs, good), "", "", codeBadToken},
		{"no name, where there is a pattern", token(t, key, "k1", rs, with("email", nil)), "", "", ""},
		{"a name that does not match", token(t, key, "k1", rs, with("email", "a@evil.org")), "", "", ""},
		{"a name where one is required", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://strict",
			"email": "a@example.com", "exp": soon}), "", "a@example.com", ""},
		{"no name where one is required", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://strict",
			"exp": soon}), "", "", codeBadToken},
		{"another name where one is required", token(t, stranger, "f1", rs, jwt.MapClaims{"iss": "https://strict",
			"email": "a@evil.org", "exp": soon}), "", "", codeBadToken},
		{"by the public key as a secret", token(t, key.N.Bytes(), "k1", jwt.SigningMethodHS256, good), "", "",
			codeBadToken},
		{"unsigned", token(t, jwt.UnsafeAllowNoneSignatureType, "k1", jwt.SigningMethodNone, good), "", "",
			codeBadToken},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		r.Header.Set("X-Who", c.more)
		caller, err := id.Identify(r)
		if codeOf(err) != c.code || err == nil && caller.Name != c.want || caller.System {
			t.Errorf("%s: %+v, %v; want %q %s", c.name, caller, err, c.want, c.code)
		}
	}

	// New keys are found when a token has one.
	served = keySet(t, "k2", &rotated.PublicKey)
	tokens.issuers[0].keys.tried = time.Time{}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", token(t, rotated, "k2", rs, good))
	if _, err := id.Identify(r); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
	served = keySet(t, "k3", &key.PublicKey)
	tokens.issuers[0].keys.tried = time.Time{}
	r.Header.Set("Authorization", token(t, key, "", rs, good))
	if _, err := id.Identify(r); err != nil {
		t.Errorf("after another one, without key id: %v", err)
	}
}

// A token with a known key does not wait for an issuer that does not answer.
func TestTokensWhileAnIssuerHangs(t *testing.T) {
	key := newKey(t)
	set := keySet(t, "k1", &key.PublicKey)
	var hangs atomic.Bool
	asked, over := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if hangs.Load() {
			asked <- struct{}{}
			<-over
		}
		w.Write(set)
	}))
	defer srv.Close()
	tokens, err := NewTokens([]Issuer{{IssuerURL: "https://one", JWKCertURL: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", token(t, key, "k1", jwt.SigningMethodRS256, jwt.MapClaims{"iss": "https://one",
		"email": "a@example.com", "exp": time.Now().Add(time.Hour).Unix()}))
	identify := func() {
		if _, err := (&Identity{Tokens: tokens}).Identify(r); err != nil {
			t.Error(err)
		}
	}
	identify()
	hangs.Store(true)
	issuer := tokens.issuers[0]
	// the keys are due for loading, and the load blocks
	issuer.keys.tried, issuer.keys.loaded, issuer.client.Timeout = time.Time{}, time.Now().Add(-2*keysFresh), 0
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	wg.Go(identify)
	<-asked
	second := make(chan struct{})
	wg.Go(func() { defer close(second); identify() })
	select {
	case <-second:
	case <-time.After(testsite.HangLimit):
		t.Error("the second caller waits for the first one's answer")
	}
}

func TestInvalidTokenIssuersAreRefused(t *testing.T) {
	for _, i := range []Issuer{
		{}, {IssuerURL: "x"}, {IssuerURL: "x", JWKCertURL: "http://keys.example.com"},
		{IssuerURL: "x", JWKCertURL: "https://a", JWKCertFile: "b"},
		{IssuerURL: "x", JWKCertFile: "b", IdentityClaimPattern: "("}, {IssuerURL: "x", JWKCertFile: "b",
			JWKCertCAFile: "/none"},
	} {
		if _, err := NewTokens([]Issuer{i}); err == nil {
			t.Errorf("%+v is taken", i)
		}
	}
}

// A header gives no caller the rights of the system or another tenant, unless tenancy is enabled:
// then a trusted gateway sets it (I10).
func TestI10Tenancy(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Atoll-Principal", "root")
	r.Header.Set("X-Org", "1")
	if caller, err := (&Identity{Open: true}).Identify(r); err != nil || caller.Name != Anonymous || caller.System ||
		caller.Tenancy != nil {
		t.Errorf("%+v, %v", caller, err)
	}
	if _, err := (&Identity{}).Identify(r); codeOf(err) != codeNoIdentity {
		t.Errorf("a server without identities admits a caller: %v", err)
	}
	tenancy := Tenancy{Enabled: true, SystemHeader: "X-System", Dimensions: []Dimension{
		{Header: "X-Org", Key: "org", Required: true}, {Header: "X-Team", Key: "team"}}}
	id := &Identity{Open: true, Tenancy: tenancy}
	if caller, err := id.Identify(r); err != nil || caller.Tenancy["org"] != "1" || len(caller.Tenancy) != 1 {
		t.Errorf("%+v, %v", caller, err)
	}
	r.Header.Set("X-System", "yes") // only "true" means that
	if caller, err := id.Identify(r); err != nil || caller.System || caller.Tenancy == nil {
		t.Errorf("%+v, %v", caller, err)
	}
	for _, org := range []string{"1", ""} {
		r.Header.Set("X-System", "True")
		r.Header.Set("X-Org", org)
		if caller, err := id.Identify(r); err != nil || !caller.System || !caller.Reporter || caller.Tenancy != nil {
			t.Errorf("the system of org %q: %+v, %v", org, caller, err)
		}
	}
	r.Header.Del("X-System")
	if _, err := id.Identify(r); codeOf(err) != codeForbidden {
		t.Errorf("one of no tenant gets in: %v", err)
	}
}
