package clm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"atoll.dev/internal/rest"
)

// Issuer is an issuer whose tokens are accepted. The keys are hyperfleet-api's.
type Issuer struct {
	IssuerURL string `yaml:"issuer_url"`
	// The keys: a URL (https, or http on loopback) or a file with a JWK set.
	JWKCertURL    string `yaml:"jwk_cert_url"`
	JWKCertFile   string `yaml:"jwk_cert_file"`
	JWKCertCAFile string `yaml:"jwk_cert_ca_file"` // the CA of the URL's certificate; default: the system's CAs

	Header   string `yaml:"header"` // the header with "Bearer" and the token; default Authorization
	Audience string `yaml:"audience"`

	// IdentityClaim is the claim that names the caller (default email). The name must match
	// IdentityClaimPattern. With IdentityHeader the caller may name itself by that header instead. A
	// caller without a usable name may read, as in the original, unless IdentityRequired is set.
	IdentityClaim        string `yaml:"identity_claim"`
	IdentityClaimPattern string `yaml:"identity_claim_pattern"`
	IdentityHeader       string `yaml:"identity_header"`
	IdentityRequired     bool   `yaml:"identity_required"` // additive
}

// leeway is the allowed difference of the issuer's clock.
const leeway = 30 * time.Second

// Tokens verifies bearer tokens: RS256, with a time of expiry, by the keys of the issuer
// that a token names.
type Tokens struct{ issuers []*issuer }

type issuer struct {
	Issuer
	pattern *regexp.Regexp
	client  *http.Client
	keys    *keyCache
}

// NewTokens checks the issuers and returns their Tokens. It loads no keys yet.
func NewTokens(all []Issuer) (*Tokens, error) {
	t := &Tokens{}
	for n, i := range all {
		is, err := newIssuer(i)
		if err != nil {
			return nil, fmt.Errorf("token issuer %d (%s): %w", n, i.IssuerURL, err)
		}
		t.issuers = append(t.issuers, is)
	}
	return t, nil
}

func newIssuer(i Issuer) (*issuer, error) {
	if i.Header == "" {
		i.Header = "Authorization"
	}
	if i.IdentityClaim == "" {
		i.IdentityClaim = "email"
	}
	is := &issuer{Issuer: i, client: &http.Client{Timeout: loadTimeout, CheckRedirect: checkRedirect}}
	if i.IssuerURL == "" || (i.JWKCertURL == "") == (i.JWKCertFile == "") {
		return nil, errors.New("issuer_url is needed, and one of jwk_cert_url and jwk_cert_file")
	}
	if i.JWKCertURL != "" {
		if err := checkSecure(i.JWKCertURL); err != nil {
			return nil, err
		}
	}
	var err error
	if is.pattern, err = regexp.Compile(i.IdentityClaimPattern); err != nil {
		return nil, fmt.Errorf("identity_claim_pattern: %w", err)
	}
	if i.JWKCertCAFile != "" {
		pem, err := os.ReadFile(i.JWKCertCAFile)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", i.JWKCertCAFile)
		}
		is.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
			MinVersion: tls.VersionTLS12}}
	}
	is.keys = newKeyCache(is.loadKeys)
	return is, nil
}

// loadKeys reads the keys from the issuer's file or URL.
func (i *issuer) loadKeys(ctx context.Context) ([]jose.JSONWebKey, error) {
	if i.JWKCertFile != "" {
		return loadFile(i.JWKCertFile)
	}
	return loadURL(ctx, i.client, i.JWKCertURL)
}

// maxRedirects bounds the redirects of one request for keys.
const maxRedirects = 3

// checkRedirect returns an error for a redirect to a URL over which an attacker on the network could send other
// keys.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return checkSecure(r.URL.String())
}

// checkSecure returns an error for a URL over which an attacker on the network could send
// other keys.
func checkSecure(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("jwk_cert_url %s is neither https nor on loopback", text)
}

var (
	errNoToken = rest.Errorf(http.StatusUnauthorized, codeNoIdentity, "a bearer token is needed")
	errExpired = rest.Errorf(http.StatusUnauthorized, codeExpired, "the token has expired; get a new one")
)

func badToken(err error) error {
	return rest.Errorf(http.StatusUnauthorized, codeBadToken, "the token is not valid here").Because(err)
}

// proven is the verified identity of a token's holder. The name is "" if the token lacks
// the claim with the name.
type proven struct {
	name     string
	nameless error  // why the name is "", nil if there is a name
	holder   string // as issuer.holder names it
	claims   jwt.MapClaims
}

// verify verifies the token in the headers and returns its holder. It tries each issuer;
// of their errors it prefers that of an expired token, which is the most precise.
func (t *Tokens) verify(ctx context.Context, header http.Header) (proven, error) {
	var last error = errNoToken
	for _, i := range t.issuers {
		text := header.Get(i.Header)
		if text == "" {
			continue
		}
		holder, err := i.verify(ctx, text, header)
		if err == nil {
			return holder, nil
		}
		if !errors.Is(last, errExpired) {
			last = err
		}
	}
	return proven{}, last
}

func (i *issuer) verify(ctx context.Context, text string, header http.Header) (proven, error) {
	words := strings.Fields(text)
	if len(words) != 2 || !strings.EqualFold(words[0], "Bearer") {
		return proven{}, badToken(errors.New("the header is not of the form: Bearer TOKEN"))
	}
	claims, err := i.parse(ctx, words[1])
	switch {
	case errors.Is(err, errKeys):
		e := rest.Errorf(http.StatusServiceUnavailable, codeUnavailable, "the keys of %s cannot be fetched; try again",
			i.IssuerURL).Because(err)
		e.RetryAfter = keysPause
		return proven{}, e
	case errors.Is(err, jwt.ErrTokenExpired):
		return proven{}, errExpired
	case err != nil:
		return proven{}, badToken(err)
	}
	name, err := i.identity(claims, header)
	if err != nil && i.IdentityRequired {
		return proven{}, badToken(err)
	}
	return proven{name, err, i.holder(claims), claims}, nil
}

// parse checks a token and returns its claims. It compares the issuer before it loads
// keys, so that a token of an unknown issuer causes no request.
func (i *issuer) parse(ctx context.Context, text string) (jwt.MapClaims, error) {
	unproven := jwt.MapClaims{}
	token, _, err := jwt.NewParser().ParseUnverified(text, unproven)
	if err != nil {
		return nil, err
	}
	if iss, _ := unproven.GetIssuer(); iss != i.IssuerURL {
		return nil, fmt.Errorf("issuer %q", iss)
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuer(
			i.IssuerURL), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithJSONNumber(),
	}
	if i.Audience != "" {
		options = append(options, jwt.WithAudience(i.Audience))
	}
	parse := func() (jwt.MapClaims, error) {
		claims := jwt.MapClaims{}
		_, err := jwt.NewParser(options...).ParseWithClaims(text, claims, i.keys.keyOf(ctx))
		return claims, err
	}
	claims, err := parse()
	// Any key of the issuer may have signed a token that names no key, also a key that the issuer has since
	// the last load.
	if _, named := token.Header["kid"]; named || !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		return claims, err
	}
	if err := i.keys.reload(ctx); err != nil {
		return nil, err
	}
	return parse()
}

// holder names the holder of a token by its claims only: the issuer with sub, or with the identity claim if the
// token lacks sub. Sub comes first because an issuer never reassigns it, while its users may be able to change
// their e-mail address. A name that the header or the pattern excludes has no effect here.
func (i *issuer) holder(claims jwt.MapClaims) string {
	name := claimText(claims["sub"])
	if name == "" {
		name = claimText(claims[i.IdentityClaim])
	}
	return fmt.Sprintf("%q of %s", name, i.IssuerURL)
}

// maxIdentity bounds the bytes of a caller's name.
const maxIdentity = 256

// identity returns the name of a token's holder. The error has the reason why there is no usable name,
// without the name and the pattern, because the caller reads it.
func (i *issuer) identity(claims jwt.MapClaims, header http.Header) (string, error) {
	name, source := "", "the header "+i.IdentityHeader
	if i.IdentityHeader != "" {
		name = strings.TrimSpace(header.Get(i.IdentityHeader))
	}
	if name == "" {
		text, _ := claims[i.IdentityClaim].(string)
		name, source = strings.TrimSpace(text), "the claim "+i.IdentityClaim
	}
	switch {
	case name == "":
		return "", errors.New("the token does not say who its holder is")
	case len(name) > maxIdentity:
		return "", fmt.Errorf("%s has more than %d bytes", source, maxIdentity)
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return "", fmt.Errorf("%s has a control character", source)
	case !i.pattern.MatchString(name):
		return "", fmt.Errorf("%s does not match the required pattern", source)
	}
	return name, nil
}
