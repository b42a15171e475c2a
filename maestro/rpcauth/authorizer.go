// Package rpcauth authenticates and authorizes the callers of Maestro's gRPC ports.
//
// A caller proves its identity by a certificate of the region's CA or of another CA, or by a token that a
// Kubernetes API server reviews. The region's own rule, a file of rules, or that API server permits its calls. Only
// package maestro and its packages import it.
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

// A call publishes to, or subscribes to, one source or one cluster.
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

// Trust says which client certificates a port trusts.
type Trust int

const (
	TrustPlain     Trust = iota // no certificates: the port has no TLS and is on loopback
	TrustRegionCA               // the client is one of the region's services or agents
	TrustForeignCA              // the client is a user of the rules, by another CA
)

// Options are the parameters of New.
type Options struct {
	RulesFile string                 // "": no rules. Read again when the file changes
	Tokens    *KubeOptions           // nil: tokens are ignored
	MayCall   func(peer string) bool // reports whether a service of the region may act for all sources
	Logger    *slog.Logger
}

// Authorizer authenticates and authorizes callers over gRPC.
type Authorizer struct {
	rules    *rulesFile // nil: no rules
	Reviewer *reviewer  // nil: tokens are ignored
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

// Caller is the identity of a gRPC caller. Authenticate returns it.
type Caller struct {
	user   string    // name in errors, rules and reviews
	groups []string  // groups in rules and reviews
	Peer   pki.Name  // proven by a certificate of the region's CA, or ""
	token  tokenUser // proven by a token
	bearer string    // the token itself; CheckAgain reviews it again while a stream lasts
	plain  bool      // called by a plain listener, which is on loopback
}

type callerKey struct{}

// WithCaller returns a context in which Authorize and CheckAgain find the caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Authenticate returns the caller, proven by its token or else by its certificate. The error
// is a *rest.Error.
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

// certified returns the caller of a verified certificate: the common name is the user. With a
// foreign CA the organizations are the groups, and the caller is never one of the region's
// services or agents, even with the name of one. The region's CA issues no groups.
func certified(cs *tls.ConnectionState, trust Trust) (Caller, bool) {
	if len(cs.VerifiedChains) == 0 || len(cs.VerifiedChains[0]) == 0 {
		return Caller{}, false
	}
	if trust == TrustForeignCA {
		subject := cs.VerifiedChains[0][0].Subject
		return Caller{user: subject.CommonName, groups: subject.Organization}, subject.CommonName != ""
	}
	name, err := pki.PeerName(cs)
	return Caller{user: string(name), Peer: name}, err == nil
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

// authenticateToken has a token reviewed, and returns its user.
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

// Authorize returns nil when the caller of ctx may publish to, or subscribe to, the source
// or cluster. The region's own rule permits first: its services may act for all sources, an
// agent for the cluster that its certificate names and for no other (I7). Then the rules of
// the operator's file permit, and for a token the Kubernetes API server that reviewed it.
func (a *Authorizer) Authorize(ctx context.Context, verb Verb, scope Scope, name string) error {
	c, ok := ctx.Value(callerKey{}).(Caller)
	switch {
	case !ok: // the handler's server lacks the authentication
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden, "the call has no authenticated caller")
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

// CheckAgain authorizes an open subscription again, since rules change and tokens expire. It
// returns an error when the subscription must end, and nil when the review fails.
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
