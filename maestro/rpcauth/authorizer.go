// Package rpcauth decides who calls over gRPC and what a caller may do.
//
// A caller is known by a certificate of the region's CA, by one of another CA, or by a token that a Kubernetes API
// server reviews; what it may do follows from the region's own rule, from a file of rules, or from that API server.
// Only package
// maestro and its packages import it.
package rpcauth

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/pki"
)

// What a caller asks for: to publish to, or to subscribe to, one source or one
// cluster.
type (
	Verb  string
	Scope string
)

const (
	Publish   Verb = "pub"
	Subscribe Verb = "sub"

	Sources  Scope = "sources"
	Clusters Scope = "clusters"
)

// Trust is whom the certificates of a port's clients prove.
type Trust int

const (
	TrustPlain     Trust = iota // nobody: there is no TLS, and the port is on loopback
	TrustRegionCA               // the region's services and agents
	TrustForeignCA              // users of the rules, by a CA that is not the region's
)

// Options are the parameters of New.
type Options struct {
	RulesFile string                 // "": there are no rules. Read again when it changes
	Tokens    *KubeOptions           // nil: tokens count nothing
	MayCall   func(peer string) bool // which of the region's services may act for all sources
	Logger    *slog.Logger
}

// Authorizer decides who calls over gRPC, and what a caller may do.
type Authorizer struct {
	rules    *rulesFile // nil: none
	Reviewer *reviewer  // nil: tokens count nothing
	mayCall  func(peer string) bool
	log      *slog.Logger
}

// New reads the rules, and refuses options that cannot work.
func New(o Options) (a *Authorizer, err error) {
	a = &Authorizer{mayCall: o.MayCall, log: o.Logger}
	if o.RulesFile != "" {
		if a.rules, err = openRules(o.RulesFile, o.Logger); err != nil {
			return nil, err
		}
	}
	if o.Tokens != nil {
		if a.Reviewer, err = newReviewer(*o.Tokens); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Run reads the rules again when their file changes, until ctx ends.
func (a *Authorizer) Run(ctx context.Context) error {
	if a.rules == nil {
		return nil
	}
	return a.rules.run(ctx)
}

// Caller is who calls over gRPC.
type Caller struct {
	user   string    // for people: in errors, rules and reviews
	groups []string  // likewise
	Peer   pki.Name  // proven by a certificate of the region's CA, or ""
	token  tokenUser // proven by a token
	bearer string    // that token, to be reviewed again while a stream lasts
	plain  bool      // came by a plain listener, which exists for loopback only
}

type callerKey struct{}

func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Authenticate proves who calls. A token counts before a certificate. The
// error is a *rest.Error.
func (a *Authorizer) Authenticate(ctx context.Context, trust Trust) (Caller, error) {
	if trust == TrustPlain {
		return Caller{user: "anonymous", plain: true}, nil
	}
	if a.Reviewer != nil {
		if token, ok := bearerToken(ctx); ok {
			return a.authenticateToken(ctx, token)
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			if c, ok := certified(&info.State, trust); ok {
				return c, nil
			}
		}
	}
	what := "a client certificate of the region's CA is needed"
	if a.Reviewer != nil {
		what = "a bearer token or a client certificate is needed"
	}
	return Caller{}, rest.Errorf(http.StatusUnauthorized, "maestro-15", "%s", what)
}

// certified reads a verified certificate: the common name is the user, the
// organizations are its groups. One of a CA that is not the region's makes
// nobody one of the region's services or agents, whatever its name.
func certified(cs *tls.ConnectionState, trust Trust) (Caller, bool) {
	if len(cs.VerifiedChains) == 0 || len(cs.VerifiedChains[0]) == 0 {
		return Caller{}, false
	}
	subject := cs.VerifiedChains[0][0].Subject
	c := Caller{user: subject.CommonName, groups: subject.Organization}
	if trust == TrustForeignCA {
		return c, c.user != ""
	}
	name, err := pki.PeerName(cs)
	c.Peer = name
	return c, err == nil
}

func bearerToken(ctx context.Context) (string, bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get("authorization")
	if len(v) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(v[0], " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "bearer")
}

func (a *Authorizer) authenticateToken(ctx context.Context, token string) (Caller, error) {
	u, ok, err := a.Reviewer.user(ctx, token)
	switch {
	case err != nil:
		a.log.LogAttrs(ctx, slog.LevelWarn, "a token could not be reviewed", slog.Any("error", err))
		return Caller{}, apierror.Unavailable("the token cannot be reviewed now; try again")
	case !ok:
		return Caller{}, rest.Errorf(http.StatusUnauthorized, "maestro-15", "the bearer token is not valid")
	}
	return Caller{user: u.Username, groups: u.Groups, token: u, bearer: token}, nil
}

// Authorize decides whether the caller may do that. The region's own rule
// comes first: its services may act for all sources, an agent for the cluster
// that its certificate names and for no other (I7). Then come the rules of the
// operator's file, and for tokens the cluster that knows them.
func (a *Authorizer) Authorize(ctx context.Context, verb Verb, scope Scope, name string) error {
	c, ok := ctx.Value(callerKey{}).(Caller)
	switch {
	case !ok: // a handler without authentication is a fault of its wiring
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden, "nobody is known to call")
	case c.plain:
		return nil
	case c.Peer != "" && scope == Sources && a.mayCall(string(c.Peer)):
		return nil
	case c.Peer != "" && scope == Clusters && string(c.Peer) == name:
		return nil
	case a.rules.current().allow(c, verb, scope, name):
		return nil
	}
	if a.Reviewer != nil && c.token.Username != "" && name != "" {
		allowed, err := a.Reviewer.allowed(ctx, c.token, verb, scope, name)
		if err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "a caller's rights could not be reviewed", slog.Any("error", err))
			return apierror.Unavailable("rights cannot be reviewed now; try again")
		}
		if allowed {
			return nil
		}
	}
	return rest.Errorf(
		http.StatusForbidden,
		apierror.CodeForbidden,
		"%s may not call Maestro: %s on /%s/%s",
		c.user,
		verb,
		scope,
		name,
	)
}

// CheckAgain asks again whether a subscription may go on: rules change, tokens
// end. That nobody can be asked now ends nothing.
func (a *Authorizer) CheckAgain(ctx context.Context, scope Scope, name string) error {
	c, _ := ctx.Value(callerKey{}).(Caller)
	err := error(nil)
	if c.bearer != "" {
		_, err = a.authenticateToken(ctx, c.bearer)
	}
	if err == nil {
		err = a.Authorize(ctx, Subscribe, scope, name)
	}
	if e, ok := err.(*rest.Error); ok && (e.Status == http.StatusForbidden || e.Status == http.StatusUnauthorized) {
		return fmt.Errorf("the subscription may not go on: %w", err)
	}
	return nil
}
