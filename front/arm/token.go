package arm

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"atoll.dev/access"
)

// byToken is the way in which ARM proves its identity with a token of Entra that is bound to a key of ARM.
const byToken access.Method = "arm-token"

// Binding determines whether a token alone proves that its sender is ARM.
type Binding string

// Bindings. Whoever reads a bearer token can send it, so by default it counts only together with a
// published certificate.
const (
	BindingRequired Binding = "required"
	BindingOptional Binding = "optional"
)

// Limits of tokens.
const (
	maxToken = 16 << 10
	// tokenLeeway is how far the clocks of Entra, ARM and the region may differ.
	tokenLeeway = 30 * time.Second
	// popLifetime is how long a signed request is valid after its time.
	popLifetime = 5 * time.Minute
	maxNonce    = 256
	// Bounds of RSA keys of senders. The cost of a check grows with the size of the key.
	minRSABits     = 2048
	maxRSABits     = 4096
	minRSAExponent = 3
	maxRSAExponent = 1<<31 - 1
)

// popAlgorithms are the algorithms of signatures of requests. All are asymmetric.
var popAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.ES384}

// TokenOptions select the tokens that prove that a sender is ARM.
type TokenOptions struct {
	Issuer       string   // the claim iss, exactly
	Tenant       string   // the claim tid
	Audiences    []string // the claim aud has one of them
	Applications []string // the claim appid or azp is one of them
	// Hosts are the names of the region. A signed request names one of them, or it is for another region.
	// A name without a port permits every port.
	Hosts   []string
	Binding Binding // default BindingRequired
	// Used remembers signed requests that change something, for all processes of the region; nil:
	// each process alone does.
	Used  access.Signatures
	Roots *x509.CertPool // verify the certificate of the issuer; nil: the system's
	Log   *slog.Logger
}

// Tokens verifies the tokens of ARM: bearer tokens, and signed requests that carry a token which is
// bound to the key of the signature (proof of possession, PoP). Several goroutines may use it.
type Tokens struct {
	o      TokenOptions
	keys   *access.IssuerKeys
	nonces *nonces
}

// NewTokens returns a verifier. It refuses tokens until Run has read the keys of the issuer.
func NewTokens(o TokenOptions) (*Tokens, error) {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("the issuer %q of ARM's tokens is no https URL", o.Issuer)
	case o.Tenant == "" || len(o.Audiences) == 0 || len(o.Applications) == 0:
		return nil, errors.New("ARM's tokens need a tenant, an audience and the ids of ARM's applications: other " +
			"applications get tokens of the same issuer")
	case len(o.Hosts) == 0:
		return nil, errors.New("ARM's tokens need the names of the region's hosts: a signed request names the " +
			"host that it is for")
	case hasBlank(o.Audiences) || hasBlank(o.Applications) || hasBlank(o.Hosts):
		return nil, errors.New("the audiences, applications and hosts of ARM's tokens must not have an empty element")
	case o.Binding == "":
		o.Binding = BindingRequired
	}
	return &Tokens{o: o, keys: access.NewIssuerKeys(o.Issuer, o.Roots, o.Log), nonces: newNonces(time.Now)}, nil
}

func hasBlank(list []string) bool {
	return slices.ContainsFunc(list, func(one string) bool { return strings.TrimSpace(one) == "" })
}

// Run reads the keys of the issuer until ctx ends, and returns its cause.
func (t *Tokens) Run(ctx context.Context) error { return t.keys.Run(ctx) }

// tokenProof has the facts that a verified token proves.
type tokenProof struct {
	application string
	until       time.Time // the end of the token
	isBound     bool      // the sender holds the key to which the token is bound
	body        string    // the digest of the body that was signed; "": none was
	request     requestDigest
}

// isOfBody reports whether a body is the signed one, if one was signed.
func (p tokenProof) isOfBody(body []byte) bool {
	digest := sha256.Sum256(body)
	return p.body == "" || p.body == base64.RawURLEncoding.EncodeToString(digest[:])
}

// verify verifies the header Authorization of a request with a path, in its original case. The
// error says what is wrong with the token.
func (t *Tokens) verify(r *http.Request, path string, now time.Time) (tokenProof, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case len(r.Header.Values("Authorization")) != 1:
		return tokenProof{}, errors.New("there are several headers Authorization")
	case len(token) > maxToken:
		return tokenProof{}, fmt.Errorf("it has more than %d bytes", maxToken)
	case strings.EqualFold(scheme, "Bearer"):
		claims, err := t.verifyAccessToken(r.Context(), token, now)
		if err == nil && claims.Confirmation != nil {
			err = errors.New("it is bound to a key of its sender, which a bearer token does not prove")
		}
		return tokenProof{application: claims.application(), until: claims.expiry()}, err
	case strings.EqualFold(scheme, "PoP"):
		return t.verifySignedRequest(r, token, path, now)
	}
	return tokenProof{}, fmt.Errorf("the scheme %q is neither PoP nor Bearer", scheme)
}

// accessClaims are the claims of a token of Entra.
type accessClaims struct {
	Issuer       string   `json:"iss"`
	Audience     audience `json:"aud"`
	Tenant       string   `json:"tid"`
	AppID        string   `json:"appid"` // of tokens of the version 1.0
	Party        string   `json:"azp"`   // of tokens of the version 2.0
	Expiry       *float64 `json:"exp"`
	NotBefore    float64  `json:"nbf"`
	Confirmation *struct {
		KeyID      string `json:"kid"`
		Thumbprint string `json:"jkt"`
	} `json:"cnf"`
}

// audience is one audience or a list.
type audience []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audience) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

func (c accessClaims) expiry() time.Time {
	if c.Expiry == nil {
		return time.Time{}
	}
	return time.Unix(int64(*c.Expiry), 0)
}

func (c accessClaims) application() string {
	if c.AppID != "" {
		return c.AppID
	}
	return c.Party
}

// verifyAccessToken returns the claims of a token when Entra has signed it for ARM and this region, and an error that
// says what is wrong with it otherwise.
func (t *Tokens) verifyAccessToken(ctx context.Context, token string, now time.Time) (c accessClaims, err error) {
	payload, err := t.keys.Payload(ctx, token)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return c, errors.New("its claims cannot be read")
	}
	has := func(list []string, value string) bool {
		return slices.ContainsFunc(list, func(one string) bool { return strings.EqualFold(one, value) })
	}
	switch {
	case c.Issuer != t.o.Issuer:
		return c, fmt.Errorf("its issuer is %q", c.Issuer)
	case !slices.ContainsFunc(c.Audience, func(a string) bool { return slices.Contains(t.o.Audiences, a) }):
		return c, errors.New("its audience is another")
	case !strings.EqualFold(c.Tenant, t.o.Tenant):
		return c, fmt.Errorf("its tenant is %q", c.Tenant)
	case c.AppID != "" && c.Party != "" && c.AppID != c.Party:
		return c, errors.New("it names two applications")
	case c.application() == "" || !has(t.o.Applications, c.application()):
		return c, fmt.Errorf("its application is %q", c.application())
	case c.Expiry == nil:
		return c, errors.New("it never expires")
	case !now.Before(c.expiry().Add(tokenLeeway)):
		return c, fmt.Errorf("it expired at %s", c.expiry().UTC().Format(time.RFC3339))
	case now.Add(tokenLeeway).Before(time.Unix(int64(c.NotBefore), 0)):
		return c, errors.New("it is not valid yet")
	}
	return c, nil
}

// popClaims are the claims of a signed request (draft-ietf-oauth-signed-http-request, as
// Microsoft's libraries write it).
type popClaims struct {
	Token        string          `json:"at"`
	Time         int64           `json:"ts"`
	Method       string          `json:"m"`
	Host         string          `json:"u"`
	Path         string          `json:"p"`
	Query        json.RawMessage `json:"q"` // [[names], digest]
	Body         string          `json:"b"` // digest
	Nonce        string          `json:"nonce"`
	Confirmation struct {
		Key jose.JSONWebKey `json:"jwk"`
	} `json:"cnf"`
}

// verifySignedRequest verifies a signed request: Entra has bound the token in it to a key, that key has
// signed the request, the signature is of this request and new, and this process has not taken it
// before. The caller checks the body, and that no other process has taken the request (recordUse).
func (t *Tokens) verifySignedRequest(r *http.Request, token, path string, now time.Time) (tokenProof, error) {
	none := tokenProof{}
	signed, err := jose.ParseSignedCompact(token, popAlgorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return none, errors.New("it is not a request that is signed with a key pair")
	}
	if kind, _ := signed.Signatures[0].Protected.ExtraHeaders[jose.HeaderType].(string); !strings.EqualFold(kind, "pop") {
		return none, fmt.Errorf("its type is %q and not pop", kind)
	}
	var c popClaims
	if err := json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &c); err != nil {
		return none, errors.New("its claims cannot be read")
	}
	key := c.Confirmation.Key
	if !isStrongPublicKey(key) {
		return none, errors.New("its key is no public key of a pair that is strong enough")
	}
	digest, err := key.Thumbprint(crypto.SHA256)
	if err != nil {
		return none, errors.New("its key cannot be read")
	}
	// The sender chooses its key: only a key to which Entra has bound a token may cost the check of a signature.
	claims, err := t.verifyAccessToken(r.Context(), c.Token, now)
	if err != nil {
		return none, fmt.Errorf("the token in it: %w", err)
	}
	thumbprint := base64.RawURLEncoding.EncodeToString(digest)
	bound := claims.Confirmation
	if bound == nil || (bound.Thumbprint != thumbprint && (bound.Thumbprint != "" || bound.KeyID != thumbprint)) {
		return none, errors.New("the token in it is not bound to the key of the signature")
	}
	if _, err := signed.Verify(key); err != nil {
		return none, errors.New("its signature is not of its key")
	}
	if err := c.checkRequest(r, path, t.o.Hosts, now); err != nil {
		return none, err
	}
	request := requestDigest(sha256.Sum256([]byte(thumbprint + "\x00" + c.Nonce)))
	if err := t.nonces.remember(request); err != nil {
		return none, err
	}
	return tokenProof{application: claims.application(), until: claims.expiry(), isBound: true, body: c.Body,
		request: request}, nil
}

// isStrongPublicKey reports whether a key is a public one that can prove something, at a bounded cost.
func isStrongPublicKey(key jose.JSONWebKey) bool {
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		return k.N.BitLen() >= minRSABits && k.N.BitLen() <= maxRSABits &&
			k.E >= minRSAExponent && k.E <= maxRSAExponent && k.E%2 == 1
	case *ecdsa.PublicKey:
		return key.Valid()
	}
	return false
}

// isRegionHost reports whether a signed host has a name of the region. A name with a port needs that port.
func isRegionHost(names []string, host string) bool {
	of, port := splitHost(host)
	return slices.ContainsFunc(names, func(one string) bool {
		name, needed := splitHost(one)
		return of != "" && strings.EqualFold(of, name) && (needed == "" || needed == cmp.Or(port, "443"))
	})
}

// splitHost returns the name or address of a host and its port, which is empty when the host has none.
func splitHost(host string) (name, port string) {
	if name, port, err := net.SplitHostPort(host); err == nil {
		return name, port
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ""
}

// checkRequest returns an error when the claims are of another request, of a host that is none of
// hosts, or of another time. The sender chooses the header Host, so that header proves nothing.
func (c popClaims) checkRequest(r *http.Request, path string, hosts []string, now time.Time) error {
	at := time.Unix(c.Time, 0)
	signedPath, err := url.PathUnescape(c.Path)
	switch {
	case now.After(at.Add(popLifetime)):
		return fmt.Errorf("it was signed at %s, more than %s ago", at.UTC().Format(time.RFC3339), popLifetime)
	case at.After(now.Add(tokenLeeway)):
		return fmt.Errorf("it was signed at %s, and the region's clock says %s", at.UTC().Format(time.RFC3339),
			now.UTC().Format(time.RFC3339))
	case c.Method != r.Method:
		return fmt.Errorf("it is of the method %q", c.Method)
	case !isRegionHost(hosts, c.Host):
		return fmt.Errorf("it is for the host %q, which is none of this region", c.Host)
	case err != nil || signedPath != path:
		return fmt.Errorf("it is for the path %q", c.Path)
	case c.Nonce == "" || len(c.Nonce) > maxNonce:
		return fmt.Errorf("its nonce is not 1 to %d characters", maxNonce)
	case len(c.Query) > 0:
		return checkQuery(c.Query, r.URL.RawQuery)
	}
	return nil
}

// checkQuery checks the claim q: the names of the signed parameters, and the digest of name=value&name=value.
func checkQuery(claim json.RawMessage, query string) error {
	var parts []json.RawMessage
	var names []string
	var want string
	if json.Unmarshal(claim, &parts) != nil || len(parts) != 2 || json.Unmarshal(parts[0], &names) != nil ||
		json.Unmarshal(parts[1], &want) != nil {
		return errors.New("its claim q cannot be read")
	}
	given := map[string][]string{}
	for _, pair := range strings.Split(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		given[name] = append(given[name], value)
	}
	pairs := make([]string, 0, len(names))
	for _, name := range names {
		if len(given[name]) != 1 {
			return errors.New("it is for another query")
		}
		pairs = append(pairs, name+"="+given[name][0])
	}
	digest := sha256.Sum256([]byte(strings.Join(pairs, "&")))
	if want != base64.RawURLEncoding.EncodeToString(digest[:]) {
		return errors.New("it is for another query")
	}
	return nil
}
