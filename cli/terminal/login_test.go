package terminal

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"atoll.dev/internal/quick"
	"atoll.dev/test/testissuer"
)

// startLogin starts an issuer, and saves the login of a person whose token has expired.
func startLogin(t *testing.T, wrap func(http.Handler) http.Handler) (*testissuer.Issuer, Login) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	issuer := testissuer.New("", "atoll-test")
	server := httptest.NewTLSServer(wrap(issuer))
	t.Cleanup(server.Close)
	issuer.URL = server.URL
	l := Login{Endpoint: "https://region.example", Issuer: issuer.URL, ClientID: "atoll-test",
		IssuerCA: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))}
	return issuer, l
}

func asIs(h http.Handler) http.Handler { return h }

// signIn signs a person in by device, and saves the login as one that has expired.
func signIn(t *testing.T, issuer *testissuer.Issuer, l Login, subject string) Login {
	t.Helper()
	issuer.SignIn(subject)
	ctx, provider, err := l.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	device, err := provider.Config.DeviceAuth(ctx)
	var tokens *oauth2.Token
	if err == nil {
		tokens, err = provider.Config.DeviceAccessToken(ctx, device)
	}
	if err == nil {
		err = l.AcceptTokens(ctx, provider, tokens, "")
	}
	l.Expires = time.Now().Add(-time.Minute)
	if err == nil {
		err = l.Save()
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Processes that find the token expired at the same time use the refresh token once. None of them writes the login
// after its person has signed out, or somebody else has signed in.
func TestAnExpiredLoginIsExtendedOnce(t *testing.T) {
	quick.LeavesOut(t, "waits for a login that expires")
	issuer, l := startLogin(t, asIs)
	l = signIn(t, issuer, l, "ann")
	var extending sync.WaitGroup
	for range 6 {
		extending.Go(func() {
			process := &tokenSource{login: l}
			if token, err := process.token(t.Context()); err != nil || token == "" || token == l.IDToken {
				t.Errorf("%q, %v", token, err)
			}
		})
	}
	extending.Wait()
	saved, err := ReadLogin()
	if err != nil || saved.RefreshToken == l.RefreshToken || time.Until(saved.Expires) < tokenMargin {
		t.Errorf("%v until %s, %v", saved, saved.Expires, err)
	}

	old := &tokenSource{login: l}
	bob := l
	bob.Subject = ""
	bob = signIn(t, issuer, bob, "bob")
	if _, err := old.token(t.Context()); err == nil {
		t.Error("the process of ann has a token of bob")
	}
	if saved, err := ReadLogin(); err != nil || saved.Subject != "bob" || saved.RefreshToken != bob.RefreshToken {
		t.Errorf("the login of %s, %v", saved.Subject, err)
	}
	if err := RemoveLogin(); err != nil {
		t.Fatal(err)
	}
	if _, err := old.token(t.Context()); err == nil || !strings.Contains(err.Error(), "signed out") {
		t.Errorf("after the logout: %v", err)
	}
	if _, err := ReadLogin(); !os.IsNotExist(err) {
		t.Errorf("the login is there after the logout: %v", err)
	}
}

// Only its owner may read the login, or put another one in its place.
func TestTheLoginIsPrivate(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	if err := os.Mkdir(filepath.Join(dir, "atoll"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "atoll"), 0o777); err != nil { // whatever the umask says
		t.Fatal(err)
	}
	if err := (Login{IDToken: "secret"}).Save(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"atoll": 0o700, "atoll/login.json": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %s", name, info.Mode(), err, want)
		}
	}
	file := filepath.Join(dir, "atoll/login.json")
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLogin(); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a login that others read: %v", err)
	}
}

// A token, or what it comes from, is sent to nobody without TLS but this machine, and to no other address than the
// issuer's description has.
func TestTokensAreSentToTheirAddressesOnly(t *testing.T) {
	quick.LeavesOut(t, "waits for real time")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for address, isGood := range map[string]bool{"https://eu-1.example": true, "http://127.0.0.1:80": true,
		"http://[::1]:80": true, "http://eu-1.example": false, "http://127.0.0.1.example": false, "": false,
		"eu-1.example": false, "ftp://eu-1.example": false} {
		region := Login{Endpoint: address, Issuer: "https://issuer.example"}
		if api, err := region.Client(); (err == nil) != isGood {
			t.Errorf("a region at %q: %v", address, err)
		} else if err == nil {
			api.Close()
		}
		issuer := Login{Endpoint: "https://eu-1.example", Issuer: address}
		if err := issuer.CheckAddresses(); (err == nil) != isGood {
			t.Errorf("an issuer at %q: %v", address, err)
		}
	}

	reached := make(chan string, 100)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.Path }))
	defer thief.Close()
	issuer, l := startLogin(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("grant_type") == "refresh_token" {
				http.Redirect(w, r, thief.URL+"/token", http.StatusTemporaryRedirect)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	l = signIn(t, issuer, l, "ann")
	if _, err := (&tokenSource{login: l}).token(t.Context()); err == nil || strings.Contains(err.Error(), l.RefreshToken) {
		t.Errorf("after a redirect: %v", err)
	}
	if len(reached) > 0 {
		t.Errorf("the refresh token went to another address: %s", <-reached)
	}
}

// A process without a home directory is not signed in, and learns so before it signs in.
func TestALoginNeedsADirectory(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	if _, err := ReadLogin(); !os.IsNotExist(err) {
		t.Errorf("the login: %v", err)
	}
	l := Login{Endpoint: "https://eu-1.example", Issuer: "https://issuer.example"}
	if _, _, err := l.Discover(context.Background()); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("signing in: %v", err)
	}
}
