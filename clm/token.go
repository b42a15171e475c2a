package clm

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"atoll.dev/internal/rest"
)

// Issuer is one whose tokens are taken. The keys are hyperfleet-api's.
type Issuer struct {
	IssuerURL string `yaml:"issuer_url"`
	// The keys: a URL (https, or http on loopback) or a file with a JWK set.
	JWKCertURL    string `yaml:"jwk_cert_url"`
	JWKCertFile   string `yaml:"jwk_cert_file"`
	JWKCertCAFile string `yaml:"jwk_cert_ca_file"` // who signed the URL's certificate; default: the system's

	Header   string `yaml:"header"` // where the token is, after "Bearer"; default Authorization
	Audience string `yaml:"audience"`

	// IdentityClaim is the claim that names the caller (default email). The name must match
	// IdentityClaimPattern. With IdentityHeader the caller may name itself by that header instead. A
	// caller without a usable name may read, as in the original, unless IdentityRequired is set.
	IdentityClaim        string `yaml:"identity_claim"`
	IdentityClaimPattern string `yaml:"identity_claim_pattern"`
	IdentityHeader       string `yaml:"identity_header"`
	IdentityRequired     bool   `yaml:"identity_required"` // additive
}

const (
	leeway = 30 * time.Second
	// Keys are fetched again after keysFresh, and for a token whose key is
	// unknown, but not more often than every keysPause.
	keysFresh = time.Hour
	keysPause = 10 * time.Second
	maxKeys   = 1 << 20
	keysWait  = 5 * time.Second
)

// Tokens verifies bearer tokens: RS256, by the keys of the issuer that they
// name, with an end.
type Tokens struct{ issuers []*issuer }

type issuer struct {
	Issuer
	pattern *regexp.Regexp
	client  *http.Client

	mu       sync.Mutex
	keys     map[string]*rsa.PublicKey // by key id
	fetched  time.Time
	tried    time.Time
	fetching *fetch // that is under way; may be nil
}

// fetch is one attempt to get an issuer's keys.
type fetch struct {
	done chan struct{} // closed at its end, after which err is set
	err  error
}

// NewTokens checks the issuers. It fetches nothing yet.
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
	is := &issuer{Issuer: i, client: &http.Client{Timeout: keysWait}}
	if i.IssuerURL == "" || (i.JWKCertURL == "") == (i.JWKCertFile == "") {
		return nil, errors.New("issuer_url is needed, and one of jwk_cert_url and jwk_cert_file")
	}
	if i.JWKCertURL != "" {
		if err := secure(i.JWKCertURL); err != nil {
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
	return is, nil
}

// secure refuses URLs from which somebody in between could send keys of his
// own.
func secure(text string) error {
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

// proven is what a token proves of its holder. A token without the claim that
// names its holder proves a name of "".
type proven struct {
	name     string
	nameless error // why the name is "", nil if there is a name
	claims   jwt.MapClaims
}

// verify returns what the token in the headers proves. It tries each issuer; of
// their errors the one that a token has expired says most.
func (t *Tokens) verify(ctx context.Context, header http.Header) (proven, error) {
	var last error = errNoToken
	for _, i := range t.issuers {
		text := header.Get(i.Header)
		if text == "" {
			continue
		}
		who, err := i.verify(ctx, text, header)
		if err == nil {
			return who, nil
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
	return proven{name, err, claims}, nil
}

// parse checks a token and returns its claims. The issuer is compared before any
// key is fetched, so a token of a stranger makes no request.
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
	id, named := token.Header["kid"].(string)
	if named {
		claims := jwt.MapClaims{}
		_, err := jwt.NewParser(options...).ParseWithClaims(text, claims, func(*jwt.Token) (any, error) {
			return i.key(ctx, id)
		})
		return claims, err
	}
	// A token may leave its key unnamed. Then any of the issuer's may have signed it.
	keys, err := i.allKeys(ctx, freshEnough)
	for attempt := 0; ; attempt++ {
		if err != nil {
			return nil, err
		}
		claims := jwt.MapClaims{}
		_, err = jwt.NewParser(options...).ParseWithClaims(text, claims, func(*jwt.Token) (any, error) {
			return keys,
				nil
		})
		if attempt > 0 || !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			return claims, err
		}
		keys, err = i.allKeys(ctx, newest) // the issuer may have a new key
	}
}

// maxIdentity is how many bytes the name of a caller has at most.
const maxIdentity = 256

// identity returns the name of a token's holder. The error says why there is no usable name; it shows
// neither the name nor the pattern, because the caller reads it.
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

var errKeys = errors.New("no keys")

// key returns a public key of the issuer by its id.
func (i *issuer) key(ctx context.Context, id string) (*rsa.PublicKey, error) {
	keys, err := i.keysWith(ctx, func(keys map[string]*rsa.PublicKey) bool { return keys[id] != nil })
	if err != nil {
		return nil, err
	}
	if keys[id] == nil {
		return nil, fmt.Errorf("the issuer has no key %q", id)
	}
	return keys[id], nil
}

// age says which keys do.
type age int

const (
	freshEnough age = iota // those that are known
	newest                 // those that the issuer has now, unless it was just asked
)

// maxTried is how many keys are tried for a token that names none.
const maxTried = 32

// allKeys returns the issuer's keys in the order of their ids.
func (i *issuer) allKeys(ctx context.Context, want age) (jwt.VerificationKeySet, error) {
	var set jwt.VerificationKeySet
	keys, err := i.keysWith(ctx, func(keys map[string]*rsa.PublicKey) bool {
		return want == freshEnough && len(
			keys) > 0
	})
	for _, id := range slices.Sorted(maps.Keys(keys)) {
		if len(set.Keys) < maxTried {
			set.Keys = append(set.Keys, keys[id])
		}
	}
	if err == nil && len(set.Keys) == 0 {
		err = errors.New("the issuer has no keys")
	}
	return set, err
}

// keysWith returns the issuer's keys, by id. It fetches them when those that are
// known are old, or not enough. One caller at a time fetches. Callers for whom
// the known keys are not enough wait for it; the others go by those that are
// known, so an issuer that does not answer holds nobody else up.
func (i *issuer) keysWith(ctx context.Context, enough func(map[string]*rsa.PublicKey) bool) (map[string]*rsa.PublicKey,
	error) {
	i.mu.Lock()
	now, known, f := time.Now(), enough(i.keys), i.fetching
	mine := f == nil && (!known || now.Sub(i.fetched) > keysFresh) && now.Sub(i.tried) > keysPause
	if mine {
		f = &fetch{done: make(chan struct{})}
		i.fetching, i.tried = f, now
	}
	i.mu.Unlock()
	switch {
	case mine:
		i.refresh(ctx, f)
	case !known && f != nil:
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.keys == nil && f != nil && f.err != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, f.err)
	}
	return i.keys, nil // a map that nobody changes
}

// refresh fetches the keys. Without an answer those that are known stay.
func (i *issuer) refresh(ctx context.Context, f *fetch) {
	keys, err := i.fetch(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case err == nil:
		i.keys, i.fetched = keys, time.Now()
	case i.keys == nil:
		i.tried = time.Time{} // nobody gets in without: the next one tries again
	}
	f.err, i.fetching = err, nil
	close(f.done)
}

func (i *issuer) fetch(ctx context.Context) (map[string]*rsa.PublicKey, error) {
	if i.JWKCertFile != "" {
		data, err := os.ReadFile(i.JWKCertFile)
		if err != nil {
			return nil, err
		}
		return parseKeys(data)
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, i.JWKCertURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", i.JWKCertURL, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys))
	if err != nil {
		return nil, err
	}
	return parseKeys(data)
}

// parseKeys reads the RSA keys of a JWK set (RFC 7517); others are passed over.
func parseKeys(data []byte) (map[string]*rsa.PublicKey, error) {
	var set struct {
		Keys []struct{ Kty, Kid, N, E string }
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("reading a key set: %w", err)
	}
	keys := map[string]*rsa.PublicKey{}
	for _, k := range set.Keys {
		if k.Kty != "RSA" {
			continue
		}
		n, err := base64.RawURLEncoding.DecodeString(k.N)
		if err != nil {
			return nil, fmt.Errorf("key %q: n: %w", k.Kid, err)
		}
		e, err := base64.RawURLEncoding.DecodeString(k.E)
		if err != nil || len(e) == 0 || len(e) > 4 {
			return nil, fmt.Errorf("key %q: e is no exponent", k.Kid)
		}
		keys[k.Kid] = &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
	}
	if len(keys) == 0 {
		return nil, errors.New("the key set has no RSA key")
	}
	return keys, nil
}
