package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"atoll.dev/test/testissuer"
)

// The region reads the issuer's keys each 5 minutes, and at most each 10 seconds for unknown keys, however
// many tokens name them. It uses the last keys for an hour while the issuer is down, and then refuses.
func TestTheKeysOfTheIssuerAreReadWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issuer := testissuer.New("https://issuer.example", oidcClient)
		issuer.SetLifetime(3 * time.Hour)
		o, err := NewOIDC(OIDCOptions{Issuer: issuer.URL, Clients: []string{oidcClient}, Links: fixedLinks{}, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		o.keys.http.Transport = handlerTransport{issuer}
		verify := func(token string) Code {
			_, err := o.verify(t.Context(), token, time.Now())
			if err == nil {
				return ""
			}
			return codeOf(err)
		}
		want := func(when string, token string, code Code) {
			t.Helper()
			if got := verify(token); got != code {
				t.Errorf("%s: %q, want %q", when, got, code)
			}
		}
		issuer.Fail()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = o.Run(ctx)
		}()
		defer func() { stop(); <-done }()
		synctest.Wait()
		first := issuer.Token(issuer.Claims(oidcSubject))
		want("before the first read", first, IssuerUnavailable)
		issuer.Recover()
		<-time.After(keysRetry)
		synctest.Wait()
		want("after the first read", first, "")

		before := issuer.KeyReads()
		stranger := jose.JSONWebKey{Key: issuer.Key().Key, KeyID: "nobody's"}
		unknown := testissuer.Sign(jose.ES256, stranger, issuer.Claims(oidcSubject), nil)
		for range 100 {
			want("at once", unknown, InvalidToken)
		}
		<-time.After(keysRetry)
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() { want("later", unknown, InvalidToken) })
		}
		asking.Wait()
		for range 100 {
			want("at once again", unknown, InvalidToken)
		}
		if n := issuer.KeyReads() - before; n != 1 {
			t.Errorf("300 tokens with an unknown key made %d reads", n)
		}

		<-time.After(keysRetry)
		issuer.AddKey("key-2")
		second := issuer.Token(issuer.Claims(oidcSubject))
		want("a new key", second, "")
		want("beside the old one", first, "")
		issuer.WithdrawOldestKey()
		<-time.After(keysPeriod + time.Second)
		synctest.Wait()
		want("a key that was withdrawn", first, InvalidToken)
		want("the new one", second, "")

		issuer.Fail()
		<-time.After(keysTrusted - 2*keysPeriod)
		synctest.Wait()
		want("while the issuer is down", second, "")
		<-time.After(2 * keysPeriod)
		synctest.Wait()
		want("down for an hour", second, IssuerUnavailable)
		issuer.Recover()
		<-time.After(keysRetry)
		synctest.Wait()
		want("up again", second, "")
	})
}

// Keys that could verify what the issuer has not signed are not used.
func TestOnlyGoodKeysOfTheIssuerAreUsed(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := func(k jose.JSONWebKey) []byte {
		data, err := k.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	public := key.Public()
	all := map[string][]byte{
		"good":        text(jose.JSONWebKey{Key: public, KeyID: "good"}),
		"symmetric":   text(jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "symmetric"}),
		"private":     text(jose.JSONWebKey{Key: key, KeyID: "private"}),
		"encryption":  text(jose.JSONWebKey{Key: public, KeyID: "encryption", Use: "enc"}),
		"anonymous":   text(jose.JSONWebKey{Key: public}),
		"for HS256":   text(jose.JSONWebKey{Key: public, KeyID: "for HS256", Algorithm: "HS256"}),
		"twice":       text(jose.JSONWebKey{Key: public, KeyID: "twice"}),
		"twice again": text(jose.JSONWebKey{Key: public, KeyID: "twice"}),
		"a short RSA": []byte(`{"kty":"RSA","kid":"a short RSA","e":"AQAB","n":"` + strings.Repeat("qqqq", 32) + `"}`),
		"no JSON key": []byte(`7`),
	}
	var list [][]byte
	for _, k := range all {
		list = append(list, k)
	}
	raw := asRaw(list)
	keys, err := usableKeys(raw)
	if _, has := keys["good"]; err != nil || !has || len(keys) != 1 {
		t.Errorf("%v, %v", keys, err)
	}
	if _, err := usableKeys(nil); err == nil {
		t.Error("an issuer without a key")
	}
	if _, err := usableKeys(asRaw(make([][]byte, maxIssuerKeys+1))); err == nil {
		t.Error("an issuer with endless keys")
	}
}

func asRaw(list [][]byte) (raw []json.RawMessage) {
	for _, k := range list {
		raw = append(raw, k)
	}
	return raw
}

// An issuer that describes another one, redirects, or sends too much is not used.
func TestAMisbehavingIssuerHasNoKeys(t *testing.T) {
	const issuer = "https://issuer.example"
	good := testissuer.New(issuer, oidcClient)
	for name, h := range map[string]http.HandlerFunc{
		"another issuer": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"issuer":"https://evil.example","jwks_uri":"https://issuer.example/keys"}`)
		},
		"keys without TLS": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/keys" {
				good.ServeHTTP(w, r)
				return
			}
			fmt.Fprint(w, `{"issuer":"https://issuer.example","jwks_uri":"http://issuer.example/keys"}`)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://evil.example", http.StatusFound)
		},
		"an endless answer": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"x":"`+strings.Repeat("x", maxIssuerAnswer))
		},
	} {
		o, err := NewOIDC(OIDCOptions{Issuer: issuer, Clients: []string{oidcClient}, Links: fixedLinks{}, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		o.keys.http.Transport = handlerTransport{h}
		if keys, err := o.keys.fetch(t.Context()); err == nil {
			t.Errorf("%s: %v", name, keys)
		}
	}
	for _, bad := range []string{"", "http://issuer.example", "https://", "https://issuer.example?x", "issuer.example",
		"https://user@issuer.example"} {
		if _, err := NewOIDC(OIDCOptions{Issuer: bad, Clients: []string{oidcClient}, Links: fixedLinks{}}); err == nil {
			t.Errorf("the issuer %q was taken", bad)
		}
	}
}
