// Package issuers lets people into a plane by tokens of the customer's OpenID Connect issuers.
//
// A file of the data directory, authentication.json, names the issuers and holds their public keys. Whoever runs the
// plane writes it, and reads the keys from the issuers: the plane connects to nobody for that. The package reads the
// file again when it changes, within a second and without a restart.
//
// Kubernetes's own authenticator of OpenID Connect verifies the tokens. One rule stands above it: no token makes its
// bearer a user or a member of a group that Kubernetes or Atoll reserves (system:, atoll:), whatever the mapping.
package issuers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

// File is the name of the file in a plane's data directory. No file means no issuers.
const File = "authentication.json"

// Config is the content of File.
type Config struct {
	Issuers []Issuer `json:"issuers"`
}

// Issuer is an issuer of tokens and what its claims mean in the plane.
type Issuer struct {
	URL            string     `json:"url"`
	Audiences      []string   `json:"audiences"` // a token has one of them
	Username       Mapping    `json:"username"`
	Groups         Mapping    `json:"groups,omitzero"` // without a claim: tokens bring no groups
	RequiredClaims []Required `json:"requiredClaims,omitempty"`
	// Keys is the JSON Web Key Set of the issuer; null while nobody could read it. Then its tokens are refused.
	Keys json.RawMessage `json:"keys,omitempty"`
}

// Mapping makes a name of a claim.
type Mapping struct {
	Claim  string `json:"claim,omitempty"`
	Prefix string `json:"prefix,omitempty"` // stands before the claim's value
}

// Required is a claim that a token must have, with this value.
type Required struct {
	Claim string `json:"claim"`
	Value string `json:"value"`
}

const (
	readEvery = time.Second
	maxFile   = 8 << 20
	maxTokens = 16 << 10 // bytes of a token
)

// reserved are the beginnings of the names that tokens cannot give.
var reserved = []string{"system:", "atoll:"}

// algorithms are those that Kubernetes's authenticator accepts. All are asymmetric.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"}

// Authenticator verifies tokens of the issuers in the file. Use New.
type Authenticator struct {
	path string
	own  []string // issuers that the file cannot name: those of the plane's own tokens
	log  *slog.Logger

	issuers atomic.Pointer[[]authenticator.Token]

	// Of the goroutine that reads the file.
	seen   fileState          // of the last file that was read
	failed string             // why the last attempt to read the file failed
	end    context.CancelFunc // of the issuers that are in use
}

// fileState distinguishes the versions of a file.
type fileState struct {
	changed time.Time
	size    int64
}

// New reads the file at path for the first time. own are the plane's own issuers.
func New(path string, own []string, log *slog.Logger) *Authenticator {
	a := &Authenticator{path: path, own: own, log: log, end: func() {}}
	a.issuers.Store(&[]authenticator.Token{})
	a.read()
	return a
}

// Run reads the file again when it changes, until ctx ends.
func (a *Authenticator) Run(ctx context.Context) {
	ticker := time.NewTicker(readEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.read()
		}
	}
}

// Request returns the authenticator of requests with a bearer token. Audiences are those of the API server.
func (a *Authenticator) Request(audiences authenticator.Audiences) authenticator.Request {
	tokens := authenticator.WrapAudienceAgnosticToken(audiences, a)
	return group.NewAuthenticatedGroupAdder(bearertoken.New(tokens))
}

// AuthenticateToken returns the user of a token. It is false without an error for a token of another issuer.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if len(token) > maxTokens {
		return nil, false, nil
	}
	for _, issuer := range *a.issuers.Load() {
		response, ok, err := issuer.AuthenticateToken(ctx, token)
		if err != nil || !ok {
			if err != nil {
				return nil, false, err
			}
			continue
		}
		if err := checkUser(response); err != nil {
			return nil, false, err
		}
		return response, true, nil
	}
	return nil, false, nil
}

// checkUser refuses users and groups with reserved names.
func checkUser(r *authenticator.Response) error {
	for _, name := range append([]string{r.User.GetName()}, r.User.GetGroups()...) {
		for _, beginning := range reserved {
			if strings.HasPrefix(name, beginning) {
				return fmt.Errorf("a token of an issuer cannot name the user or group %q", name)
			}
		}
	}
	return nil
}

// read replaces the issuers if the file has changed. A file that cannot be read or decoded changes nothing.
func (a *Authenticator) read() {
	info, err := os.Stat(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		if len(*a.issuers.Load()) > 0 {
			a.log.Info("the plane trusts no issuer any more")
			a.replace(nil, func() {})
		}
		a.seen = fileState{}
		return
	}
	if err != nil {
		a.showFailure(err)
		return
	}
	state := fileState{info.ModTime(), info.Size()}
	if state == a.seen {
		return
	}
	config, err := readConfig(a.path)
	if err != nil {
		a.showFailure(err)
		return
	}
	a.seen, a.failed = state, ""
	ctx, end := context.WithCancel(context.Background())
	var issuers []authenticator.Token
	for _, i := range config.Issuers {
		issuer, err := a.newIssuer(ctx, i)
		if err != nil { // the others are good without it
			a.log.Error("an issuer cannot be used", "issuer", i.URL, "error", err)
			continue
		}
		issuers = append(issuers, issuer)
	}
	a.replace(issuers, end)
	a.log.Info("the plane has read its issuers", "issuers", len(issuers))
}

// showFailure logs why the file cannot be read, once for each reason. The next attempt is a second later, also when the
// file stays as it is: its owner or permissions may change.
func (a *Authenticator) showFailure(err error) {
	if reason := err.Error(); reason != a.failed {
		a.failed = reason
		a.log.Error("the file of issuers cannot be read", "error", err)
	}
}

func (a *Authenticator) replace(issuers []authenticator.Token, end context.CancelFunc) {
	a.issuers.Store(&issuers)
	a.end()
	a.end = end
}

func readConfig(path string) (c Config, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return c, err
	}
	if info.Size() > maxFile {
		return c, fmt.Errorf("%s has %d bytes; %d are possible", path, info.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// newIssuer returns upstream's authenticator of one issuer. Upstream checks the configuration, too.
func (a *Authenticator) newIssuer(ctx context.Context, i Issuer) (authenticator.Token, error) {
	keys, err := newKeySet(i.Keys)
	if err != nil {
		return nil, err
	}
	config := apiserverapi.JWTAuthenticator{
		Issuer: apiserverapi.Issuer{URL: i.URL, Audiences: i.Audiences},
		ClaimMappings: apiserverapi.ClaimMappings{
			Username: apiserverapi.PrefixedClaimOrExpression{Claim: i.Username.Claim, Prefix: &i.Username.Prefix},
		},
	}
	if len(i.Audiences) > 1 {
		config.Issuer.AudienceMatchPolicy = apiserverapi.AudienceMatchPolicyMatchAny
	}
	if i.Groups.Claim != "" {
		config.ClaimMappings.Groups = apiserverapi.PrefixedClaimOrExpression{Claim: i.Groups.Claim, Prefix: &i.Groups.Prefix}
	}
	for _, r := range i.RequiredClaims {
		config.ClaimValidationRules = append(config.ClaimValidationRules,
			apiserverapi.ClaimValidationRule{Claim: r.Claim, RequiredValue: r.Value})
	}
	return oidc.New(ctx, oidc.Options{
		JWTAuthenticator: config, KeySet: keys, SupportedSigningAlgs: algorithms, DisallowedIssuers: a.own,
		// Nothing is fetched: a claim that lies on another server (aggregated claims) refuses its token.
		Client: &http.Client{Transport: noConnections{}},
	})
}

// noConnections refuses every request.
type noConnections struct{}

func (noConnections) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, errors.New("a plane connects to no issuer")
}
