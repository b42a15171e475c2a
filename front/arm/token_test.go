package arm_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/front/arm"
	"atoll.dev/test/testissuer"
	"atoll.dev/test/testsite"
)

// The application of ARM, and the audience of its tokens for this region.
const (
	armApplication = "797f4846-ba00-4fd7-ba43-dac1f8f63013"
	armAudience    = "https://rp.example"
	armHost        = "127.0.0.1" // of the region
)

// failingSignatures remembers signed requests, or returns an error.
type failingSignatures struct {
	access.Signatures
	mu  sync.Mutex
	err error        // nil: none
	of  access.Proof // the last one
}

// fail makes Use return an error, or nil to use the signatures.
func (s *failingSignatures) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *failingSignatures) last() access.Proof {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of
}

func (s *failingSignatures) Use(ctx context.Context, p access.Proof) error {
	s.mu.Lock()
	err := s.err
	s.of = p
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Signatures.Use(ctx, p)
}

// startEntra starts an issuer of tokens for ARM.
func startEntra(t *testing.T) (*testissuer.Issuer, *x509.CertPool) {
	t.Helper()
	var issuer *testissuer.Issuer
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		issuer.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	issuer = testissuer.New(server.URL, armAudience)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return issuer, roots
}

// newTokens starts an issuer and returns a verifier of its tokens.
func (w *world) newTokens(t *testing.T) *arm.Tokens {
	t.Helper()
	var roots *x509.CertPool
	w.entra, roots = startEntra(t)
	w.used = &failingSignatures{Signatures: access.NewUsedSignatures(w.store)}
	tokens, err := arm.NewTokens(arm.TokenOptions{Issuer: w.entra.URL, Tenant: tenant, Audiences: []string{armAudience},
		Applications: []string{armApplication}, Hosts: []string{armHost, "localhost:1"}, Used: w.used, Roots: roots,
		Log: testsite.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func newKey(t *testing.T) jose.JSONWebKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, Algorithm: "ES256"}
}

func thumbprintOf(t *testing.T, key jose.JSONWebKey) string {
	t.Helper()
	digest, err := key.Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(digest)
}

func digestOf(text string) string {
	digest := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(digest[:])
}

// with returns a copy of claims with changes; the value nil removes a claim.
func with(claims map[string]any, changes map[string]any) map[string]any {
	changed := maps.Clone(claims)
	for name, value := range changes {
		if changed[name] = value; value == nil {
			delete(changed, name)
		}
	}
	return changed
}

// testTokens attacks the strict front, which takes ARM's tokens. Each attack differs from a good request in one thing.
func (w *world) testTokens(t *testing.T) {
	server := w.servers[arm.Strict]
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	key, otherKey := newKey(t), newKey(t)
	claims := map[string]any{"iss": w.entra.URL, "aud": armAudience, "tid": tenant, "appid": armApplication,
		"iat": time.Now().Unix(), "nbf": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"cnf": map[string]string{"kid": thumbprintOf(t, key)}}
	nonce := 0
	// request returns the claims of a signed request.
	request := func(changes map[string]any) map[string]any {
		nonce++
		return with(map[string]any{"at": w.entra.Token(claims), "ts": time.Now().Unix(), "m": "GET", "u": at.Host, "p": demo,
			"nonce": fmt.Sprint("n", nonce), "cnf": map[string]any{"jwk": key.Public()}}, changes)
	}
	headers := map[jose.HeaderKey]any{jose.HeaderType: "pop"}
	sign := func(request map[string]any) string { return testissuer.Sign(jose.ES256, key, request, headers) }
	withToken := func(changes map[string]any) string {
		return sign(request(map[string]any{"at": w.entra.Token(with(claims, changes))}))
	}
	send := func(authorization string, certificate *tls.Certificate) answer {
		t.Helper()
		return w.do(call{mode: arm.Strict, method: "GET", path: demo, cert: certificate, header: map[string]string{
			"Authorization": authorization}})
	}
	none := &tls.Certificate{}
	t.Run("a signed request with a bound token proves ARM without a certificate", func(t *testing.T) {
		send("PoP "+sign(request(nil)), none).want(t, 200)
		send("pop "+sign(request(map[string]any{"q": []any{[]string{"api-version"}, digestOf("api-version=" + latest)}})),
			none).want(t, 200)
		send("PoP "+withToken(map[string]any{"appid": nil, "azp": strings.ToUpper(armApplication), "aud": []string{"x",
			armAudience}, "cnf": map[string]string{"jkt": thumbprintOf(t, key)}}), none).want(t, 200)
		body := `{"tags":{"pop":"1"}}`
		patch := call{mode: arm.Strict, method: "PATCH", path: demo, cert: none, body: body}
		patch.header = map[string]string{"Authorization": "PoP " + sign(request(map[string]any{"m": "PATCH",
			"b": digestOf(body)}))}
		a := w.do(patch).want(t, 202)
		w.do(patch).want(t, 401, "used before")
		w.succeed(t, a)
		patch.header["Authorization"] = "PoP " + sign(request(map[string]any{"m": "PATCH", "b": digestOf("{}")}))
		w.do(patch).want(t, 401, "another body")
	})
	patchWith := func(nonce string) call {
		return call{mode: arm.Strict, method: "PATCH", path: demo, cert: none, body: `{"tags":{"pop":"2"}}`,
			header: map[string]string{"Authorization": "PoP " + sign(request(map[string]any{"m": "PATCH", "nonce": nonce}))}}
	}
	t.Run("a signed request that cannot be recorded is answered 429 or 503 and may be sent again", func(t *testing.T) {
		patch := patchWith("again")
		for _, c := range []struct {
			err    error
			status int
			after  string
		}{{access.ErrAccountFull, 429, "60"}, {access.ErrFull, 503, "1"}, {access.ErrClock, 503, "1"},
			{context.DeadlineExceeded, 503, "1"}, {errors.New("SECRET"), 503, "1"}} {
			w.used.fail(c.err)
			a := w.do(patch).want(t, c.status)
			if strings.Contains(a.raw, "SECRET") || a.header.Get("Retry-After") != c.after {
				t.Errorf("%v: Retry-After %q, %s", c.err, a.header.Get("Retry-After"), a.raw)
			}
		}
		w.used.fail(nil)
		w.succeed(t, w.do(patch).want(t, 202))
		w.do(patch).want(t, 401, "used before")
		w.used.fail(access.ErrUsed) // by another process
		w.do(patchWith("elsewhere")).want(t, 401, "used before")
		w.used.fail(nil)
	})
	t.Run("a signed request counts in the share of the account of its subscription", func(t *testing.T) {
		page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: remote.SearchEqual(
			"labels.azure-subscription", sub)})
		if err != nil || len(page.Items) == 0 {
			t.Fatalf("%+v, %v", page, err)
		}
		if got, want := string(w.used.last().Account), page.Items[0].Tenancy["account"]; got != want {
			t.Errorf("the account is %q, not %q", got, want)
		}
	})
	t.Run("a signed request is for a name of the region, whatever the header Host says", func(t *testing.T) {
		for signed, isOfRegion := range map[string]bool{armHost: true, armHost + ":443": true, armHost + ":9": true,
			"localhost:1": true, "LOCALHOST:1": true, "localhost": false, "localhost:443": false, "other.example": false,
			"x" + armHost: false, armHost + ".example": false, "": false, ":443": false} {
			for _, sent := range []string{"", signed} {
				a := w.do(call{mode: arm.Strict, method: "GET", path: demo, cert: none, host: sent, header: map[string]string{
					"Authorization": "PoP " + sign(request(map[string]any{"u": signed}))}})
				if isOfRegion != (a.status == 200) || !isOfRegion && a.status != 401 && a.status != 400 {
					t.Errorf("signed for %q, sent to %q: %d %s", signed, sent, a.status, a.raw)
				}
			}
		}
	})
	t.Run("a key that Entra has not bound costs no check of a signature", func(t *testing.T) {
		foreign, stranger := testissuer.New(w.entra.URL, armAudience), newKey(t)
		send("PoP "+testissuer.Sign(jose.ES256, otherKey, request(map[string]any{"at": foreign.Token(claims)}), headers),
			none).want(t, 401, "the token in it")
		send("PoP "+testissuer.Sign(jose.ES256, otherKey, request(map[string]any{"cnf": map[string]any{
			"jwk": stranger.Public()}}), headers), none).want(t, 401, "not bound to the key")
	})
	t.Run("every other token proves nothing", func(t *testing.T) {
		good := sign(request(nil))
		send("PoP "+good, none).want(t, 200)
		parts := strings.Split(good, ".")
		weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // the test shows that it is refused
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		foreign := testissuer.New(w.entra.URL, armAudience) // with a key of its own and the same key id
		for name, token := range map[string]string{
			"a replay":          good,
			"no token":          "",
			"an unsigned one":   "eyJhbGciOiJub25lIiwidHlwIjoicG9wIn0." + parts[1] + ".",
			"a changed payload": parts[0] + "." + strings.Split(sign(request(nil)), ".")[1] + "." + parts[2],
			"a bearer token":    w.entra.Token(claims),
			"another type":      testissuer.Sign(jose.ES256, key, request(nil), map[jose.HeaderKey]any{jose.HeaderType: "JWT"}),
			"another key":       testissuer.Sign(jose.ES256, otherKey, request(nil), headers),
			"a key that is not bound": testissuer.Sign(jose.ES256, otherKey, request(map[string]any{"cnf": map[string]any{
				"jwk": otherKey.Public()}}), headers),
			"a weak key": testissuer.Sign(jose.RS256, jose.JSONWebKey{Key: weak}, request(map[string]any{"cnf": map[string]any{
				"jwk": jose.JSONWebKey{Key: &weak.PublicKey}}}), headers),
			"a symmetric key":     testissuer.Sign(jose.HS256, []byte(strings.Repeat("k", 32)), request(nil), headers),
			"a private key in it": sign(request(map[string]any{"cnf": map[string]any{"jwk": key}})),
			"no key":              sign(request(map[string]any{"cnf": nil})),
			"another method":      sign(request(map[string]any{"m": "DELETE"})),
			"no method":           sign(request(map[string]any{"m": nil})),
			"another host":        sign(request(map[string]any{"u": "rp.example"})),
			"no host":             sign(request(map[string]any{"u": nil})),
			"another path":        sign(request(map[string]any{"p": demo + "x"})),
			"no path":             sign(request(map[string]any{"p": nil})),
			"another query": sign(request(map[string]any{"q": []any{[]string{"api-version"},
				digestOf("api-version=" + oldest)}})),
			"a missing parameter":   sign(request(map[string]any{"q": []any{[]string{"$top"}, digestOf("$top=1")}})),
			"an old time":           sign(request(map[string]any{"ts": now.Add(-6 * time.Minute).Unix()})),
			"no time":               sign(request(map[string]any{"ts": nil})),
			"a future time":         sign(request(map[string]any{"ts": now.Add(2 * time.Minute).Unix()})),
			"no nonce":              sign(request(map[string]any{"nonce": nil})),
			"no access token":       sign(request(map[string]any{"at": nil})),
			"a foreign issuer":      sign(request(map[string]any{"at": foreign.Token(claims)})),
			"a token without bond":  withToken(map[string]any{"cnf": nil}),
			"a bond to another key": withToken(map[string]any{"cnf": map[string]string{"kid": thumbprintOf(t, otherKey)}}),
			"two bonds": withToken(map[string]any{"cnf": map[string]string{"kid": thumbprintOf(t, key),
				"jkt": thumbprintOf(t, otherKey)}}),
			"another issuer":      withToken(map[string]any{"iss": "https://sts.example"}),
			"another audience":    withToken(map[string]any{"aud": "https://other.example"}),
			"another tenant":      withToken(map[string]any{"tid": client}),
			"no tenant":           withToken(map[string]any{"tid": nil}),
			"another application": withToken(map[string]any{"appid": client}),
			"no application":      withToken(map[string]any{"appid": nil}),
			"two applications":    withToken(map[string]any{"azp": client}),
			"an expired one":      withToken(map[string]any{"exp": now.Add(-time.Minute).Unix()}),
			"one without end":     withToken(map[string]any{"exp": nil}),
			"an early one":        withToken(map[string]any{"nbf": now.Add(2 * time.Minute).Unix()}),
		} {
			if a := send("PoP "+token, none); a.status != 401 || a.at("error", "code") != "AuthenticationFailed" {
				t.Errorf("%s: %d %s", name, a.status, a.raw)
			}
		}
	})
	t.Run("a bearer token counts with a published certificate only", func(t *testing.T) {
		bearer := "Bearer " + w.entra.Token(with(claims, map[string]any{"cnf": nil}))
		stranger := newCertificate(t, time.Now().Add(time.Hour))
		send(bearer, nil).want(t, 200)
		send(bearer, none).want(t, 401, "PoP")
		send(bearer, &stranger).want(t, 401)
		send("Bearer "+w.entra.Token(claims), nil).want(t, 401, "bound to a key")
		send("Bearer x", nil).want(t, 401)
		send("Basic eDp5", nil).want(t, 401)
		w.do(call{mode: arm.Strict, method: "GET", path: demo}).want(t, 200) // a certificate alone
		w.do(call{mode: arm.Strict, method: "GET", path: demo, cert: none}).want(t, 401)
	})
}

// TestTokensNeedAnApplicationOfARM checks that no part of the check of tokens can be left out by mistake.
func TestTokensNeedAnApplicationOfARM(t *testing.T) {
	good := arm.TokenOptions{Issuer: "https://sts.example/x", Tenant: tenant, Audiences: []string{armAudience},
		Applications: []string{armApplication}, Hosts: []string{armHost}}
	if _, err := arm.NewTokens(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*arm.TokenOptions){
		"http":                 func(o *arm.TokenOptions) { o.Issuer = "http://sts.example" },
		"no tenant":            func(o *arm.TokenOptions) { o.Tenant = "" },
		"no audience":          func(o *arm.TokenOptions) { o.Audiences = nil },
		"no application":       func(o *arm.TokenOptions) { o.Applications = nil },
		"no host":              func(o *arm.TokenOptions) { o.Hosts = nil },
		"an empty audience":    func(o *arm.TokenOptions) { o.Audiences = []string{armAudience, ""} },
		"an empty application": func(o *arm.TokenOptions) { o.Applications = []string{"", armApplication} },
		"an empty host":        func(o *arm.TokenOptions) { o.Hosts = []string{" "} },
	} {
		o := good
		change(&o)
		if _, err := arm.NewTokens(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
