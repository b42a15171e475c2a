package access

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	maxOIDCToken   = 8 << 10
	maxOIDCSubject = 255 // as OpenID Connect bounds it
	// oidcLeeway is how far the clocks of the issuer and of the region may differ.
	oidcLeeway = 30 * time.Second
	// maxOIDCLifetime bounds how long a token is valid from now.
	maxOIDCLifetime = 24 * time.Hour
)

// oidcAlgorithms are the algorithms of signatures that a region takes. All are asymmetric: with HS256 the
// public key of the issuer would be a secret, and with none there is no proof.
var oidcAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// OIDCOptions select the issuer and the tokens that a region takes.
type OIDCOptions struct {
	// Issuer is the URL of the issuer, exactly as the claim iss of its tokens.
	Issuer string
	// Clients are the clients of the issuer whose tokens the region takes. A token's audience has one of
	// them, or of Audiences; its authorized party, if it names one, is one of them.
	Clients []string
	// Audiences are further audiences, such as that of access tokens for the region. A token with one of them
	// must name its authorized party.
	Audiences []string
	// SubjectClaim is the claim that names a person for ever; default sub. NewOIDC refuses claims that people
	// change or share.
	SubjectClaim string
	// Roots verify the certificates of the issuer; nil: the system's.
	Roots *x509.CertPool
	// Links finds the principals of external identities.
	Links Links
	// Log gets failures of reading the issuer's keys, once a minute.
	Log *slog.Logger
}

// OIDC proves identities by tokens of an OpenID Connect issuer. A token names a person of the issuer; a
// Link maps that person to a principal of the region. Several goroutines may call its methods.
type OIDC struct {
	options OIDCOptions
	keys    *issuerKeys
}

var _ BearerVerifier = (*OIDC)(nil)

// NewOIDC returns an OIDC, which refuses tokens with 503 until Run has read the keys of the issuer.
func NewOIDC(o OIDCOptions) (*OIDC, error) {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, fmt.Errorf("the issuer %s is not like https://HOST/PATH", quoted(o.Issuer))
	case len(o.Clients) == 0 || slices.Contains(o.Clients, "") || slices.Contains(o.Audiences, ""):
		return nil, errors.New("tokens of an issuer need the ids of its clients: one of them, or an audience, must be " +
			"that of a token")
	case o.Links == nil:
		return nil, errors.New("tokens of an issuer need links")
	}
	o.SubjectClaim = cmp.Or(o.SubjectClaim, "sub")
	if !namesOnePerson(o.SubjectClaim) {
		return nil, fmt.Errorf("the claim %s does not name one person for ever: people change or share its value; "+
			"use sub, or another id that the issuer never gives to a second person", quoted(o.SubjectClaim))
	}
	return &OIDC{options: o, keys: newIssuerKeys(o)}, nil
}

// sharedClaims are standard claims that several people share, or that differ between two tokens of one person.
var sharedClaims = []string{"iss", "aud", "azp", "exp", "iat", "nbf", "jti", "nonce", "sid", "acr", "amr", "auth_time",
	"at_hash", "c_hash", "s_hash", "typ", "scope", "scp", "roles", "groups", "client_id", "appid", "cid", "tid", "hd",
	"profile", "picture", "website", "gender", "birthdate", "zoneinfo", "locale", "address", "updated_at", "upn", "wids"}

// changeableWords are in the names of claims whose value a person or an administrator changes, such as
// preferred_username, nickname, email and https://example.com/mail.
var changeableWords = []string{"name", "mail", "phone", "login"}

// namesOnePerson reports whether a claim may name one person for ever: it is neither in sharedClaims nor does its name
// have one of changeableWords.
func namesOnePerson(claim string) bool {
	claim = strings.ToLower(claim)
	return !slices.Contains(sharedClaims, claim) &&
		!slices.ContainsFunc(changeableWords, func(word string) bool { return strings.Contains(claim, word) })
}

// Run reads the keys of the issuer again and again, until ctx ends, and returns its cause.
func (o *OIDC) Run(ctx context.Context) error { return o.keys.run(ctx) }

// Takes implements BearerVerifier: a token of three parts whose first one begins as JSON.
func (o *OIDC) Takes(token string) bool {
	return strings.HasPrefix(token, "eyJ") && strings.Count(token, ".") == 2
}

// Prove implements BearerVerifier. An identity without a link is refused, except for the request that redeems
// a link code: that has the identity of the code's principal, and can take no other action.
func (o *OIDC) Prove(r *http.Request, token string) (Identity, error) {
	claims, err := o.verify(r.Context(), token, time.Now())
	if err != nil {
		return Identity{}, err
	}
	code, err := linkCodeOf(r)
	if err != nil {
		return Identity{}, err
	}
	link, isLinked, err := o.options.Links.Link(o.options.Issuer, claims.subject)
	if err != nil {
		return Identity{}, notReady(err)
	}
	evidence := Evidence{Method: ByOIDC, Issuer: o.options.Issuer, Subject: claims.subject, Until: claims.until}
	if isLinked {
		evidence.Credential = link.ID
		return Identity{Principal: link.Principal, Account: link.Account, Privileged: link.Privileged,
			Evidence: evidence, linkCode: code}, nil
	}
	if code == "" {
		return Identity{}, refuse(NotLinked, "the identity %s of %s is not linked to an account of this region; get a code "+
			"from an administrator of your account, who runs: atoll link create; then run: atoll link redeem",
			quoted(claims.subject), o.options.Issuer)
	}
	found, isValid, err := o.options.Links.LinkCode(code)
	switch {
	case err != nil:
		return Identity{}, notReady(err)
	case !isValid || !time.Now().Before(found.Expires):
		return Identity{}, refuse(InvalidLinkCode, "%s", invalidLinkCode)
	}
	return Identity{Principal: found.Principal, Account: found.Account, Privileged: found.Privileged,
		Evidence: evidence, linkCode: code}, nil
}

func notReady(err error) error {
	if errors.Is(err, ErrTooOld) {
		return keysTooOld().Because(err)
	}
	return refuse(KeysNotReady, "the region has not read its links yet, so it cannot identify the sender of the token; "+
		"try again").
		Because(err)
}

// oidcClaims are the claims of a token that the region reads.
type oidcClaims struct {
	subject string
	until   time.Time // the end of the token
}

// verify returns the claims of a token that the issuer has signed for this region.
func (o *OIDC) verify(ctx context.Context, token string, now time.Time) (oidcClaims, error) {
	bad := func(format string, args ...any) (oidcClaims, error) {
		return oidcClaims{}, refuse(InvalidToken, "the token is not one of "+o.options.Issuer+" for this region: "+format+
			"; get one with: atoll login", args...)
	}
	if len(token) > maxOIDCToken {
		return bad("it has more than %d bytes", maxOIDCToken)
	}
	payload, problem, err := o.keys.payload(ctx, token)
	if problem != "" {
		return bad("%s", problem)
	}
	if err != nil {
		return oidcClaims{}, err
	}
	var c struct {
		Issuer    string           `json:"iss"`
		Audience  jwt.Audience     `json:"aud"`
		Expiry    *jwt.NumericDate `json:"exp"`
		NotBefore *jwt.NumericDate `json:"nbf"`
		IssuedAt  *jwt.NumericDate `json:"iat"`
	}
	var all map[string]any // go-jose's JSON refuses a claim that is there twice, and compares names exactly
	if err := errors.Join(json.Unmarshal(payload, &c), json.Unmarshal(payload, &all)); err != nil {
		return bad("its claims cannot be read")
	}
	subject, _ := all[o.options.SubjectClaim].(string)
	_, isEvent := all["events"]
	_, isBound := all["cnf"]
	audienceProblem := o.audienceProblem(c.Audience, all)
	switch {
	case c.Issuer != o.options.Issuer:
		return bad("its issuer is %s", quoted(c.Issuer))
	case audienceProblem != "":
		return bad("%s", audienceProblem)
	case isEvent:
		return bad("it is the token of an event")
	case isBound:
		return bad("it is bound to a key of its sender, which a bearer token does not prove")
	case !isSubject(subject):
		return bad("its claim %s is not 1 to %d printable ASCII characters", quoted(o.options.SubjectClaim), maxOIDCSubject)
	case c.Expiry == nil:
		return bad("it never expires")
	}
	until := c.Expiry.Time().Add(oidcLeeway)
	switch {
	case !now.Before(until):
		return oidcClaims{}, expired(c.Expiry.Time())
	case until.Sub(now) > maxOIDCLifetime+2*oidcLeeway:
		return bad("it is valid for more than %s", maxOIDCLifetime)
	}
	for _, from := range []*jwt.NumericDate{c.NotBefore, c.IssuedAt} {
		if from != nil && from.Time().Sub(now) > oidcLeeway {
			return oidcClaims{}, refuse(SignatureInFuture, "the token is valid from %s and the region's clock says %s",
				from.Time().UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
	}
	return oidcClaims{subject, until}, nil
}

// partyClaims name the client to which the issuer has given a token: azp of OpenID Connect, client_id of RFC 9068.
var partyClaims = []string{"azp", "client_id"}

// accessPartyClaims are the claims that name the client in access tokens: appid is Entra's, cid is Okta's.
var accessPartyClaims = append([]string{"appid", "cid"}, partyClaims...)

// audienceProblem returns why a token is not for this region, or not of a client of this region; "" when it is. Every
// client of an issuer may get an access token for an audience, so such a token must name a client of the region.
func (o *OIDC) audienceProblem(audience []string, claims map[string]any) string {
	isClient := func(a string) bool { return slices.Contains(o.options.Clients, a) }
	isFurther := func(a string) bool { return slices.Contains(o.options.Audiences, a) }
	names := partyClaims
	needsParty := len(audience) > 1
	switch {
	case slices.ContainsFunc(audience, isClient):
	case slices.ContainsFunc(audience, isFurther):
		names, needsParty = accessPartyClaims, true
	default:
		return "its audience is another"
	}
	hasParty := false
	for _, name := range names {
		value, has := claims[name]
		party, _ := value.(string)
		if has && !isClient(party) {
			return "its authorized party is " + quoted(party)
		}
		hasParty = hasParty || has
	}
	if needsParty && !hasParty {
		return "it names no authorized party, which a token with several audiences or one of --oidc-audience needs"
	}
	return ""
}

// tokenTypes are the types of tokens that prove an identity, in the header typ. A logout token or a
// security event has another one.
var tokenTypes = []string{"", "jwt", "at+jwt", "application/at+jwt"}

// keyHeaders are headers by which a token names a key of its own.
var keyHeaders = []jose.HeaderKey{"jku", "x5u", "crit", "b64"}

// headerProblem returns the first member of a header that a token for a region does not have; "" when there is none.
func headerProblem(h jose.Header) string {
	kind, _ := h.ExtraHeaders[jose.HeaderType].(string)
	switch {
	case !slices.Contains(tokenTypes, strings.ToLower(kind)):
		return "its type is " + quoted(kind)
	case h.KeyID == "":
		return "it does not name the key that has signed it"
	case h.JSONWebKey != nil:
		return "it brings its own key"
	}
	for _, name := range keyHeaders {
		if _, has := h.ExtraHeaders[name]; has {
			return "it has the header " + string(name)
		}
	}
	return ""
}

// isSubject reports whether a text is 1 to maxOIDCSubject printable ASCII characters.
func isSubject(s string) bool {
	isOther := func(c rune) bool { return c < 0x20 || c > 0x7e }
	return s != "" && len(s) <= maxOIDCSubject && !strings.ContainsFunc(s, isOther)
}
