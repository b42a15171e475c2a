package clm

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"atoll.dev/internal/pgtest"
)

// A caller has a limited number of open watches, of resources and of statuses together. Another caller does
// not notice, and a watch that ends makes room for the next one.
func TestEachCallerHasALimitOfWatches(t *testing.T) {
	a, _ := startWith(t, pgtest.DSN(t), func(o *Options) { o.WatchesPerCaller = 3 })
	cluster := "/clusters/" + a.cluster("abc")
	ana, ben := *a, *a
	ana.caller.Name, ben.caller.Name = "ana@example.com", "ben@example.com"

	first := ana.watch(t, "/clusters?watch=true")
	ana.watch(t, "/nodepools?watch=true")
	ana.watch(t, cluster+"/statuses?watch=true")
	for _, path := range []string{"/clusters?watch=true", cluster + "/statuses?watch=true"} {
		got := ana.do("GET", path, "").want(429, "LMT-001")
		is(t, "Retry-After", got.header.Get("Retry-After"), "5")
		is(t, "the title", got.at("title"), "Rate Limit Exceeded")
	}
	ana.do("GET", "/clusters", "").want(200)
	for range 3 {
		ben.watch(t, "/clusters?watch=true")
	}
	ben.do("GET", "/clusters?watch=true", "").want(429, "LMT-001")

	first.end()
	// The server notices the end of a connection a moment later.
	for ana.statusOfWatch("/clusters?watch=true") != http.StatusOK {
	}
	ana.do("GET", "/clusters?watch=true", "").want(429, "LMT-001")
	ben.do("GET", "/clusters?watch=true", "").want(429, "LMT-001")
}

// statusOfWatch opens a watch that stays open until the end of the test, and returns the answer's status.
func (a *testAPI) statusOfWatch(path string) int {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), "GET", a.base+basePath+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("X-Test-Name", a.caller.Name)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { res.Body.Close() })
	return res.StatusCode
}

// A watch of a service counts for the account on whose behalf it calls, for all users of the
// account together. A watch of a service for itself does not count.
func TestWatchesAreCountedForAccounts(t *testing.T) {
	acme, other := map[string]string{"org": "acme"}, map[string]string{"org": "other"}
	got := map[string]string{}
	for name, c := range map[string]Caller{
		"an account's user":    {Name: "ana", Account: "1", System: true},
		"another user of it":   {Name: "ben", Account: "1"},
		"a service for itself": {Name: "system:adapter", System: true, Service: true},
		"a service's operator": {Name: "olga", System: true},
		"a token's holder":     {Name: "ana", Tenancy: acme},
		"of another tenant":    {Name: "ana", Tenancy: other},
	} {
		got[name] = c.watcher()
	}
	want := map[string]string{
		"an account's user": "account 1", "another user of it": "account 1", "a service for itself": "",
		"a service's operator": `caller "olga" `, "a token's holder": `caller "ana" {"org":"acme"}`,
		"of another tenant": `caller "ana" {"org":"other"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The holder of a token cannot evade the limit of watches by other names in the header of its issuer, nor
// without a name. Holders of other tokens are counted apart.
func TestTheLimitOfWatchesCountsHoldersOfTokens(t *testing.T) {
	key := newKey(t)
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, keySet(t, "k1", &key.PublicKey), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := NewTokens([]Issuer{
		{IssuerURL: "https://one", JWKCertFile: file, IdentityHeader: "X-Who"},
		{IssuerURL: "https://two", JWKCertFile: file, IdentityHeader: "X-Who"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := &Identity{Tokens: tokens}
	counted := func(who string, claims jwt.MapClaims) string {
		t.Helper()
		claims["exp"] = time.Now().Add(time.Minute).Unix()
		r := httptest.NewRequest("GET", basePath+"/clusters?watch=true", nil)
		r.Header.Set("Authorization", token(t, key, "k1", jwt.SigningMethodRS256, claims))
		r.Header.Set("X-Who", who)
		c, err := id.Identify(r)
		if err != nil {
			t.Fatal(err)
		}
		return c.watcher()
	}
	type claims = jwt.MapClaims
	const ana, ben = "ana@example.com", "ben@example.com"
	want := counted("", claims{"iss": "https://one", "sub": "1", "email": ana})
	for name, same := range map[string]string{
		"another name in the header":   counted("ben", claims{"iss": "https://one", "sub": "1", "email": ana}),
		"a name that is too long":      counted(strings.Repeat("x", maxIdentity+1), claims{"iss": "https://one", "sub": "1"}),
		"a changed e-mail address":     counted("", claims{"iss": "https://one", "sub": "1", "email": ben}),
		"a token without e-mail":       counted("", claims{"iss": "https://one", "sub": "1"}),
		"sub as a number":              counted("", claims{"iss": "https://one", "sub": 1}),
		"further claims of the holder": counted("", claims{"iss": "https://one", "sub": "1", "azp": "cli", "jti": "2"}),
	} {
		is(t, name, same, want)
	}
	others := map[string]claims{want: nil}
	for _, c := range []claims{
		{"iss": "https://one", "sub": "2", "email": ana}, {"iss": "https://two", "sub": "1", "email": ana},
		{"iss": "https://one", "email": ana}, {"iss": "https://two", "email": ana}, {"iss": "https://one"},
	} {
		key := counted(ana, c)
		if same, found := others[key]; found {
			t.Errorf("the limit counts the holders of %v and %v together, as %s", c, same, key)
		}
		others[key] = c
	}
}
