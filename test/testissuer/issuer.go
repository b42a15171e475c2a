// Package testissuer is a complete OpenID Connect issuer for tests: discovery, keys that rotate, the
// authorization code flow with PKCE, the device flow, and refresh tokens that are good for one use.
//
// The person of SignIn consents to each request at once, without a page. The issuer checks what clients send as a
// strict issuer does, so that a client that works with it keeps to the standards.
package testissuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer is an http.Handler. Several goroutines may use it.
type Issuer struct {
	// URL is the issuer's, without a slash at its end. ClientID is its only client, which has no secret.
	URL, ClientID string

	mu       sync.Mutex
	subject  string
	lifetime time.Duration // of tokens
	keys     []jose.JSONWebKey
	isDown   bool
	reads    int                  // of the keys
	grants   map[string]grant     // by code, device code and refresh token
	seen     map[string]time.Time // last poll of a device code
}

// grant is the permission that an authorization code, a device code or a refresh token stands for.
type grant struct {
	kind                       string // code, device or refresh
	subject                    string
	redirect, challenge, nonce string // of a code
	polls                      int    // of a device code
	isUsed                     bool
}

// New returns an issuer with one key.
func New(url, clientID string) *Issuer {
	i := &Issuer{URL: url, ClientID: clientID, subject: "person-1", lifetime: time.Hour, grants: map[string]grant{},
		seen: map[string]time.Time{}}
	i.AddKey("key-1")
	return i
}

// SignIn sets the person who consents from now on.
func (i *Issuer) SignIn(subject string) { i.locked(func() { i.subject = subject }) }

// SetLifetime sets how long new tokens are valid.
func (i *Issuer) SetLifetime(d time.Duration) { i.locked(func() { i.lifetime = d }) }

// Fail makes the issuer answer everything with 500, until Recover.
func (i *Issuer) Fail() { i.locked(func() { i.isDown = true }) }

// Recover makes the issuer answer again.
func (i *Issuer) Recover() { i.locked(func() { i.isDown = false }) }

// KeyReads returns how often the keys were read.
func (i *Issuer) KeyReads() (n int) {
	i.locked(func() { n = i.reads })
	return n
}

// locked calls do with the lock held.
func (i *Issuer) locked(do func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	do()
}

// AddKey makes a new key, which signs from now on, and publishes it beside the others.
func (i *Issuer) AddKey(id string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	i.Publish(jose.JSONWebKey{Key: private, KeyID: id, Algorithm: "ES256", Use: "sig"})
}

// Publish adds a key as it is. The last one signs.
func (i *Issuer) Publish(key jose.JSONWebKey) { i.locked(func() { i.keys = append(i.keys, key) }) }

// WithdrawOldestKey stops publishing the oldest key.
func (i *Issuer) WithdrawOldestKey() { i.locked(func() { i.keys = i.keys[1:] }) }

// Key returns the key that signs.
func (i *Issuer) Key() (key jose.JSONWebKey) {
	i.locked(func() { key = i.keys[len(i.keys)-1] })
	return key
}

// Claims returns the claims of a good token for a person.
func (i *Issuer) Claims(subject string) map[string]any {
	now := time.Now()
	var lifetime time.Duration
	i.locked(func() { lifetime = i.lifetime })
	return map[string]any{"iss": i.URL, "aud": i.ClientID, "sub": subject, "iat": now.Unix(),
		"exp": now.Add(lifetime).Unix(), "email": subject + "@example.com"}
}

// Token returns a token of the issuer with claims.
func (i *Issuer) Token(claims map[string]any) string {
	key := i.Key()
	return Sign(jose.SignatureAlgorithm(key.Algorithm), key, claims, nil)
}

// Sign returns a token with claims, which a map or a text of JSON has. It panics when the key cannot sign.
func Sign(algorithm jose.SignatureAlgorithm, key any, claims any, headers map[jose.HeaderKey]any) string {
	o := (&jose.SignerOptions{}).WithType("JWT")
	for name, value := range headers {
		o = o.WithHeader(name, value)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, o)
	if err != nil {
		panic(err)
	}
	text, isText := claims.(string)
	payload := []byte(text)
	if !isText {
		if payload, err = json.Marshal(claims); err != nil {
			panic(err)
		}
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		panic(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return token
}

func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	isDown := i.isDown
	i.mu.Unlock()
	if isDown {
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /.well-known/openid-configuration":
		writeJSON(w, http.StatusOK, map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token",
			"device_authorization_endpoint": i.URL + "/device", "response_types_supported": []string{"code"},
			"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"ES256"},
			"scopes_supported":                 []string{"openid", "offline_access"},
			"code_challenge_methods_supported": []string{"S256"}})
	case "GET /keys":
		i.serveKeys(w)
	case "GET /authorize":
		i.authorize(w, r)
	case "POST /device":
		i.beginDevice(w, r)
	case "POST /token":
		i.serveToken(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (i *Issuer) serveKeys(w http.ResponseWriter) {
	var set jose.JSONWebKeySet
	i.locked(func() {
		i.reads++
		for _, key := range i.keys {
			if private, ok := key.Key.(interface{ Public() crypto.PublicKey }); ok {
				key.Key = private.Public()
			}
			set.Keys = append(set.Keys, key)
		}
	})
	writeJSON(w, http.StatusOK, set)
}

// authorize consents in the name of the person and sends the browser back to the client.
func (i *Issuer) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	switch {
	case q.Get("client_id") != i.ClientID || err != nil || back.Hostname() != "127.0.0.1" || back.Scheme != "http":
		http.Error(w, "the client or its address is unknown", http.StatusBadRequest)
		return
	case q.Get("response_type") != "code", q.Get("code_challenge_method") != "S256", len(q.Get("code_challenge")) != 43,
		q.Get("state") == "", q.Get("nonce") == "", !strings.Contains(q.Get("scope"), "openid"):
		http.Error(w, "response_type, PKCE, state, nonce or scope is wrong", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	i.locked(func() {
		i.grants[code] = grant{kind: "code", subject: i.subject, redirect: q.Get("redirect_uri"),
			challenge: q.Get("code_challenge"), nonce: q.Get("nonce")}
	})
	back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {i.URL}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

// beginDevice begins a device flow. The person consents after the first poll.
func (i *Issuer) beginDevice(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("client_id") != i.ClientID {
		writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "invalid_client"})
		return
	}
	code := rand.Text()
	i.locked(func() { i.grants[code] = grant{kind: "device", subject: i.subject} })
	writeJSON(w, http.StatusOK, map[string]any{"device_code": code, "user_code": code[:4] + "-" + code[4:8],
		"verification_uri": i.URL + "/activate", "expires_in": 300, "interval": 1})
}

func (i *Issuer) serveToken(w http.ResponseWriter, r *http.Request) {
	refuse := func(code string) { writeJSON(w, http.StatusBadRequest, map[string]string{"error": code}) }
	if r.FormValue("client_id") != i.ClientID {
		refuse("invalid_client")
		return
	}
	switch r.FormValue("grant_type") {
	case "authorization_code":
		sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		g, ok := i.redeem("code", r.FormValue("code"))
		if !ok || g.redirect != r.FormValue("redirect_uri") ||
			g.challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			refuse("invalid_grant")
			return
		}
		i.sendTokens(w, g)
	case "urn:ietf:params:oauth:grant-type:device_code":
		if problem := i.poll(r.FormValue("device_code")); problem != "" {
			refuse(problem)
			return
		}
		if g, ok := i.redeem("device", r.FormValue("device_code")); ok {
			i.sendTokens(w, g)
			return
		}
		refuse("invalid_grant")
	case "refresh_token":
		g, ok := i.redeem("refresh", r.FormValue("refresh_token"))
		if !ok {
			refuse("invalid_grant")
			return
		}
		i.sendTokens(w, g)
	default:
		refuse("unsupported_grant_type")
	}
}

// poll records a poll of a device code. It returns the error code of the answer, or "" when the code can be redeemed.
func (i *Issuer) poll(code string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	g, ok := i.grants[code]
	if !ok || g.kind != "device" {
		return "expired_token"
	}
	since := time.Since(i.seen[code])
	i.seen[code] = time.Now()
	if since < time.Second/2 {
		return "slow_down"
	}
	if g.polls++; g.polls == 1 {
		i.grants[code] = g
		return "authorization_pending"
	}
	return ""
}

// redeem returns the grant of a code or token and marks it as used; ok is false when there is no such grant, or it was
// used before.
func (i *Issuer) redeem(kind, code string) (g grant, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	g, ok = i.grants[code]
	if !ok || g.kind != kind || g.isUsed {
		return grant{}, false
	}
	used := g
	used.isUsed = true
	i.grants[code] = used
	return g, true
}

// sendTokens answers with the tokens of a grant.
func (i *Issuer) sendTokens(w http.ResponseWriter, g grant) {
	claims := i.Claims(g.subject)
	if g.nonce != "" {
		claims["nonce"] = g.nonce
	}
	refresh := rand.Text()
	var lifetime time.Duration
	i.locked(func() {
		i.grants[refresh] = grant{kind: "refresh", subject: g.subject}
		lifetime = i.lifetime
	})
	access := maps.Clone(claims)
	access["aud"] = "another-service"
	writeJSON(w, http.StatusOK, map[string]any{"id_token": i.Token(claims), "access_token": i.Token(access),
		"token_type": "Bearer", "expires_in": int(lifetime.Seconds()), "refresh_token": refresh})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(fmt.Sprint("testissuer: ", err))
	}
}
