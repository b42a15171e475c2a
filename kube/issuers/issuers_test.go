package issuers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
)

const (
	own   = "https://kubernetes.default.svc.cluster.local"
	login = "https://login.example.com"
)

func newKey(t *testing.T, id string) jose.JSONWebKey {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: "ES256", Use: "sig"}
}

func keysOf(t *testing.T, keys ...jose.JSONWebKey) json.RawMessage {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, k.Public())
	}
	data, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func sign(t *testing.T, algorithm jose.SignatureAlgorithm, key any, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// write replaces the file of issuers as hosting does.
func write(t *testing.T, path string, config any) {
	t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// damageFor damages a file during a call; afterwards its content, size and time are as before.
func damageFor(t *testing.T, path string, call func()) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		content []byte
		after   func()
	}{{[]byte(strings.Repeat("x", len(content))), call}, {content, func() {}}} {
		if err := os.WriteFile(path, step.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		step.after()
	}
}

func TestTokensOfTheIssuersAndNoOthersLetPeopleIn(t *testing.T) {
	key, stranger := newKey(t, "a"), newKey(t, "a")
	config := Config{Issuers: []Issuer{
		{URL: login, Audiences: []string{"kubectl"}, Username: Mapping{"sub", "oidc:"}, Groups: Mapping{"groups", "oidc:"},
			RequiredClaims: []Required{{"tenant", "blue"}}, Keys: keysOf(t, key)},
		// Validation outside of the plane refuses this mapping; the plane does not rely on that.
		{URL: "https://careless.example.com", Audiences: []string{"a", "b"}, Username: Mapping{"name", ""},
			Groups: Mapping{"groups", ""}, Keys: keysOf(t, key)},
		{URL: "https://unread.example.com", Audiences: []string{"kubectl"}, Username: Mapping{"sub", "x:"}},
		{URL: own, Audiences: []string{"kubectl"}, Username: Mapping{"sub", "own:"}, Keys: keysOf(t, key)},
		{URL: "http://plain.example.com", Audiences: []string{"kubectl"}, Username: Mapping{"sub", "plain:"},
			Keys: keysOf(t, key)},
	}}
	path := filepath.Join(t.TempDir(), File)
	write(t, path, config)
	a := New(path, []string{own}, slog.New(slog.DiscardHandler))
	now := time.Now()
	good := map[string]any{"iss": login, "aud": "kubectl", "sub": "ada", "groups": []string{"web", "system:masters"},
		"tenant": "blue", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix()}
	careless := map[string]any{"iss": "https://careless.example.com", "aud": []string{"z", "b"}, "name": "ada",
		"exp": now.Add(time.Hour).Unix()}
	with := func(claims map[string]any, change map[string]any) map[string]any {
		c := maps.Clone(claims)
		maps.Copy(c, change)
		maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
		return c
	}
	public, err := json.Marshal(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token  string
		user   string
		groups []string
	}{
		"good": {sign(t, jose.ES256, key, good), "oidc:ada",
			[]string{"oidc:web", "oidc:system:masters"}},
		"another audience": {token: sign(t, jose.ES256, key, with(good, map[string]any{"aud": "web"}))},
		"expired":          {token: sign(t, jose.ES256, key, with(good, map[string]any{"exp": now.Unix() - 60}))},
		"without an end":   {token: sign(t, jose.ES256, key, with(good, map[string]any{"exp": nil}))},
		"another tenant":   {token: sign(t, jose.ES256, key, with(good, map[string]any{"tenant": "red"}))},
		"no tenant":        {token: sign(t, jose.ES256, key, with(good, map[string]any{"tenant": nil}))},
		"another issuer": {
			token: sign(t, jose.ES256, key, with(good, map[string]any{"iss": "https://x.example.com"}))},
		"another key":                {token: sign(t, jose.ES256, stranger, good)},
		"the public key as a secret": {token: sign(t, jose.HS256, public, good)},
		"an issuer without keys": {
			token: sign(t, jose.ES256, key, with(good, map[string]any{"iss": "https://unread.example.com"}))},
		"the plane's own issuer": {token: sign(t, jose.ES256, key, with(good, map[string]any{"iss": own}))},
		"an issuer without TLS": {
			token: sign(t, jose.ES256, key, with(good, map[string]any{"iss": "http://plain.example.com"}))},
		"no token":  {token: "abc"},
		"oversized": {token: sign(t, jose.ES256, key, with(good, map[string]any{"x": strings.Repeat("x", maxTokens)}))},
		"groups on another server": {token: sign(t, jose.ES256, key, with(good, map[string]any{"groups": nil,
			"_claim_names":   map[string]string{"groups": "s"},
			"_claim_sources": map[string]any{"s": map[string]string{"endpoint": "https://127.0.0.1:1/"}}}))},

		"without a prefix":     {token: sign(t, jose.ES256, key, careless), user: "ada"},
		"a user of the system": {token: sign(t, jose.ES256, key, with(careless, map[string]any{"name": "system:admin"}))},
		"a user of a credential": {
			token: sign(t, jose.ES256, key, with(careless, map[string]any{"name": "atoll:credential:1"}))},
		"a group of the system": {
			token: sign(t, jose.ES256, key, with(careless, map[string]any{"groups": []string{"a", "system:masters"}}))},
	} {
		t.Run(name, func(t *testing.T) {
			r, ok, err := a.AuthenticateToken(context.Background(), c.token)
			if ok != (c.user != "") {
				t.Fatalf("authenticated: %v, error %v", ok, err)
			}
			if ok && (r.User.GetName() != c.user || !slices.Equal(r.User.GetGroups(), c.groups)) {
				t.Errorf("user %s, groups %v", r.User.GetName(), r.User.GetGroups())
			}
		})
	}
}

func TestAChangedFileOfIssuersTakesEffect(t *testing.T) {
	first, second := newKey(t, "1"), newKey(t, "2")
	path := filepath.Join(t.TempDir(), File)
	a := New(path, []string{own}, slog.New(slog.DiscardHandler))
	lets := func(key jose.JSONWebKey) bool {
		t.Helper()
		_, ok, _ := a.AuthenticateToken(context.Background(), sign(t, jose.ES256, key, map[string]any{"iss": login,
			"aud": "kubectl", "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()}))
		return ok
	}
	with := func(keys ...jose.JSONWebKey) Config {
		return Config{Issuers: []Issuer{{URL: login, Audiences: []string{"kubectl"}, Username: Mapping{"sub", "oidc:"},
			Keys: keysOf(t, keys...)}}}
	}
	for _, step := range []struct {
		name          string
		change        func()
		first, second bool
	}{
		{"no file", func() {}, false, false},
		{"one key", func() { write(t, path, with(first)) }, true, false},
		{"two keys", func() { write(t, path, with(first, second)) }, true, true},
		{"a withdrawn key", func() { write(t, path, with(second)) }, false, true},
		{"a damaged file", func() { write(t, path, "nonsense") }, false, true},
		{"a file that was read too early", func() { write(t, path, with(first)); damageFor(t, path, a.read) }, true, false},
		{"a removed file", func() { os.Remove(path) }, false, false},
	} {
		step.change()
		a.read()
		if x, y := lets(first), lets(second); x != step.first || y != step.second {
			t.Errorf("%s: the first key lets in: %v, the second: %v", step.name, x, y)
		}
	}
}
