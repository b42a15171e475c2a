package terminal

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/filelock"
)

// Login is what `atoll login` keeps of a person who has signed in: in one file, which only its owner may read.
type Login struct {
	Endpoint string `json:"endpoint"` // of the region
	CA       string `json:"ca,omitempty"`
	Issuer   string `json:"issuer"`
	IssuerCA string `json:"issuerCA,omitempty"`
	ClientID string `json:"clientId"`

	Subject      string    `json:"subject"`
	IDToken      string    `json:"idToken"`
	Expires      time.Time `json:"expiresAt"` // of IDToken
	RefreshToken string    `json:"refreshToken,omitempty"`
}

// String hides the tokens.
func (l Login) String() string { return "login at " + l.Issuer }

// GoString hides the tokens from %#v.
func (l Login) GoString() string { return l.String() }

// loginFile returns the path of the file of the login.
func loginFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the directory of the login: %w", err)
	}
	return filepath.Join(dir, "atoll", "login.json"), nil
}

// ReadLogin reads the login. The error is fs.ErrNotExist when nobody has signed in.
func ReadLogin() (Login, error) {
	var l Login
	path, err := loginFile()
	if err != nil {
		return l, fs.ErrNotExist // a process without a home directory
	}
	info, err := os.Stat(path)
	if err != nil {
		return l, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return l, fmt.Errorf("%s has mode %s: others may read its tokens; sign in again with: atoll logout && atoll login",
			path, info.Mode())
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("reading the login: %w; sign in again with: atoll logout && atoll login", err)
	}
	return l, err
}

// Save writes the login in the place of an earlier one.
func (l Login) Save() error {
	path, err := loginFile()
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(l, "", "  ")
	if err == nil {
		err = makeLoginDirectory(path)
	}
	if err == nil {
		err = atomicfile.Write(path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("saving the login: %w", err)
	}
	return nil
}

// makeLoginDirectory makes the directory of the login's file, which only its owner may enter.
func makeLoginDirectory(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// RemoveLogin removes the login. The error is fs.ErrNotExist when there is none. It waits until no process extends
// the login, because that would write it again.
func RemoveLogin() error {
	path, err := loginFile()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return err
	}
	unlock, err := lockLogin()
	if err != nil {
		return err
	}
	defer unlock()
	return os.Remove(path)
}

// CheckAddresses returns an error when the login cannot be saved, or when others could read what is sent to the region
// or to the issuer.
func (l Login) CheckAddresses() error {
	if _, err := loginFile(); err != nil {
		return err
	}
	for what, address := range map[string]string{"region's API": l.Endpoint, "issuer": l.Issuer} {
		if !isSafeAddress(address) {
			return fmt.Errorf("the address of the %s, %s, is not like https://HOST: others could read your token", what,
				OneLine(address))
		}
	}
	return nil
}

// Provider is the issuer of a login, and how this program is its client.
type Provider struct {
	*oidc.Provider
	Config oauth2.Config
}

// loginTimeout bounds a request to an issuer.
const loginTimeout = 20 * time.Second

// Discover reads the issuer's description of itself. The context that it returns has the issuer's CA for all further
// requests.
func (l Login) Discover(ctx context.Context) (context.Context, *Provider, error) {
	if err := l.CheckAddresses(); err != nil {
		return ctx, nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.IssuerCA != "" {
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM([]byte(l.IssuerCA)) {
			return ctx, nil, errors.New("the CA of the issuer has no PEM certificate")
		}
	}
	// A redirect would send a code or a refresh token to an address that the issuer has not described.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	ctx = oidc.ClientContext(ctx, &http.Client{Timeout: loginTimeout, CheckRedirect: refuse, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableKeepAlives: true}})
	provider, err := oidc.NewProvider(ctx, l.Issuer)
	if err != nil {
		return ctx, nil, fmt.Errorf("reading %s: %w", l.Issuer, err)
	}
	endpoint := provider.Endpoint()
	endpoint.AuthStyle = oauth2.AuthStyleInParams // trying both styles would use a code up
	var keys struct {
		Address string `json:"jwks_uri"`
	}
	if err := provider.Claims(&keys); err != nil {
		return ctx, nil, fmt.Errorf("reading %s: %w", l.Issuer, err)
	}
	for _, address := range []string{keys.Address, endpoint.AuthURL, endpoint.TokenURL, endpoint.DeviceAuthURL} {
		if address != "" && !isSafeAddress(address) {
			return ctx, nil, fmt.Errorf("the issuer's address %s is not https", address)
		}
	}
	return ctx, &Provider{provider, oauth2.Config{ClientID: l.ClientID, Endpoint: endpoint,
		Scopes: l.scopes(provider)}}, nil
}

// isSafeAddress reports whether others cannot read the traffic to a URL: it is https, or http on loopback.
func isSafeAddress(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && err == nil && ip.IsLoopback()
}

// scopes returns the scopes that a client requests: one for a refresh token only where the issuer knows it.
func (l Login) scopes(provider *oidc.Provider) []string {
	var known struct {
		Scopes []string `json:"scopes_supported"`
	}
	scopes := []string{oidc.ScopeOpenID}
	if provider.Claims(&known) == nil {
		for _, scope := range known.Scopes {
			if scope == oidc.ScopeOfflineAccess {
				scopes = append(scopes, scope)
			}
		}
	}
	return scopes
}

// AcceptTokens verifies the tokens of the issuer's answer and stores them in the login. nonce is the one that the
// request sent; "" for none.
func (l *Login) AcceptTokens(ctx context.Context, provider *Provider, tokens *oauth2.Token, nonce string) error {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" {
		return fmt.Errorf("%s sent no ID token", l.Issuer)
	}
	verified, err := provider.VerifierContext(ctx, &oidc.Config{ClientID: l.ClientID}).Verify(ctx, raw)
	switch {
	case err != nil:
		return fmt.Errorf("verifying the token of %s: %w", l.Issuer, err)
	case verified.Nonce != nonce && nonce != "":
		return fmt.Errorf("the token of %s is an answer to another request", l.Issuer)
	case l.Subject != "" && l.Subject != verified.Subject:
		return fmt.Errorf("%s sent the token of another person", l.Issuer)
	}
	l.Subject, l.IDToken, l.Expires = verified.Subject, raw, verified.Expiry
	if tokens.RefreshToken != "" {
		l.RefreshToken = tokens.RefreshToken
	}
	return nil
}

// Client returns a client of the region of the login. It gets new tokens when they expire.
func (l Login) Client() (*client.Client, error) {
	if err := l.CheckAddresses(); err != nil {
		return nil, err
	}
	tokens := &tokenSource{login: l}
	return client.New(client.Options{Endpoint: l.Endpoint, CAFile: l.CA, Token: tokens.token})
}

// isSameAs reports whether two logins are of the same person, client and region.
func (l Login) isSameAs(other Login) bool {
	return l.Endpoint == other.Endpoint && l.Issuer == other.Issuer && l.ClientID == other.ClientID &&
		l.Subject == other.Subject
}

// tokenSource gives out the ID token of a login. Several goroutines may use it.
type tokenSource struct {
	mu    sync.Mutex
	login Login
}

// tokenMargin is how long before its end a token is replaced.
const tokenMargin = 20 * time.Second

// token returns a token that is valid now. The error is a *remote.SenderError when only the person can get a new one.
func (t *tokenSource) token(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Until(t.login.Expires) > tokenMargin {
		return t.login.IDToken, nil
	}
	unlock, err := lockLogin()
	if err != nil {
		return "", err
	}
	defer unlock()
	saved, err := ReadLogin()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", &remote.SenderError{Err: errors.New("you have signed out meanwhile; sign in again with: atoll login")}
	case err != nil:
		return "", err
	case !saved.isSameAs(t.login):
		return "", &remote.SenderError{
			Err: errors.New("you have signed in elsewhere, or as somebody else, meanwhile; run the command again")}
	}
	t.login = saved // another process may have new tokens already; a refresh token is often good once only
	if time.Until(t.login.Expires) > tokenMargin {
		return t.login.IDToken, nil
	}
	if err := t.login.refresh(ctx); err != nil {
		return "", err
	}
	return t.login.IDToken, t.login.Save()
}

// refresh gets new tokens by the refresh token.
func (l *Login) refresh(ctx context.Context) error {
	if l.RefreshToken == "" {
		return &remote.SenderError{Err: fmt.Errorf("the login expired at %s; sign in again with: atoll login",
			l.Expires.Format(time.RFC3339))}
	}
	ctx, provider, err := l.Discover(ctx)
	if err != nil {
		return err
	}
	tokens, err := provider.Config.TokenSource(ctx, &oauth2.Token{RefreshToken: l.RefreshToken}).Token()
	if err == nil {
		err = l.AcceptTokens(ctx, provider, tokens, "")
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the login cannot be extended: %w; sign in again with: atoll login", err)
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response.StatusCode < 500 &&
		refused.Response.StatusCode != http.StatusTooManyRequests {
		return &remote.SenderError{Err: err}
	}
	return err
}

// lockLogin makes other processes wait until unlock is called.
func lockLogin() (unlock func(), err error) {
	path, err := loginFile()
	if err != nil {
		return nil, err
	}
	if err := makeLoginDirectory(path); err != nil {
		return nil, fmt.Errorf("locking the login: %w", err)
	}
	if unlock, err = filelock.Wait(path + ".lock"); err != nil {
		return nil, fmt.Errorf("locking the login: %w", err)
	}
	return unlock, nil
}
