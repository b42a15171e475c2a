package maestro

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
	"atoll.dev/pki"
)

// What a caller asks for: to publish to, or to subscribe to, one source or one
// cluster.
type (
	rpcVerb  string
	rpcScope string
)

const (
	verbPublish   rpcVerb = "pub"
	verbSubscribe rpcVerb = "sub"

	sources  rpcScope = "sources"
	clusters rpcScope = "clusters"
)

// rpcCaller is who calls over gRPC.
type rpcCaller struct {
	user   string    // for people: in errors, rules and reviews
	groups []string  // likewise
	peer   pki.Name  // proven by a certificate of the region's CA, or ""
	token  tokenUser // proven by a token
	bearer string    // that token, to be reviewed again while a stream lasts
	plain  bool      // came by a plain listener, which exists for loopback only
}

type rpcCallerKey struct{}

func withRPCCaller(ctx context.Context, c rpcCaller) context.Context {
	return context.WithValue(ctx, rpcCallerKey{}, c)
}

// authenticate proves who calls. A token counts before a certificate. The
// error is a *rest.Error.
func (s *Server) authenticate(ctx context.Context, port rpcPort) (rpcCaller, error) {
	if port.config == nil {
		return rpcCaller{user: "anonymous", plain: true}, nil
	}
	if s.reviewer != nil {
		if token, ok := bearerToken(ctx); ok {
			return s.authenticateToken(ctx, token)
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			if c, ok := certified(&info.State, port.foreign); ok {
				return c, nil
			}
		}
	}
	what := "a client certificate of the region's CA is needed"
	if s.reviewer != nil {
		what = "a bearer token or a client certificate is needed"
	}
	return rpcCaller{}, rest.Errorf(http.StatusUnauthorized, "maestro-15", "%s", what)
}

// certified reads a verified certificate: the common name is the user, the
// organizations are its groups. One of a CA that is not the region's makes
// nobody one of the region's services or agents, whatever its name.
func certified(cs *tls.ConnectionState, foreign bool) (rpcCaller, bool) {
	if len(cs.VerifiedChains) == 0 || len(cs.VerifiedChains[0]) == 0 {
		return rpcCaller{}, false
	}
	subject := cs.VerifiedChains[0][0].Subject
	c := rpcCaller{user: subject.CommonName, groups: subject.Organization}
	if foreign {
		return c, c.user != ""
	}
	name, err := pki.PeerName(cs)
	c.peer = name
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

func (s *Server) authenticateToken(ctx context.Context, token string) (rpcCaller, error) {
	u, ok, err := s.reviewer.user(ctx, token)
	switch {
	case err != nil:
		s.log.LogAttrs(ctx, slog.LevelWarn, "a token could not be reviewed", slog.Any("error", err))
		return rpcCaller{}, unavailable("the token cannot be reviewed now; try again")
	case !ok:
		return rpcCaller{}, rest.Errorf(http.StatusUnauthorized, "maestro-15", "the bearer token is not valid")
	}
	return rpcCaller{user: u.Username, groups: u.Groups, token: u, bearer: token}, nil
}

// authorize decides whether the caller may do that. The region's own rule
// comes first: its services may act for all sources, an agent for the cluster
// that its certificate names and for no other (I7). Then come the rules of the
// operator's file, and for tokens the cluster that knows them.
func (s *Server) authorize(ctx context.Context, verb rpcVerb, scope rpcScope, name string) error {
	c, ok := ctx.Value(rpcCallerKey{}).(rpcCaller)
	switch {
	case !ok: // a handler without authentication is a fault of its wiring
		return rest.Errorf(http.StatusForbidden, codeForbidden, "nobody is known to call")
	case c.plain:
		return nil
	case c.peer != "" && scope == sources && s.opts.MayCall(string(c.peer)):
		return nil
	case c.peer != "" && scope == clusters && string(c.peer) == name:
		return nil
	case s.rules.current().allow(c, verb, scope, name):
		return nil
	}
	if s.reviewer != nil && c.token.Username != "" && name != "" {
		allowed, err := s.reviewer.allowed(ctx, c.token, verb, scope, name)
		if err != nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "a caller's rights could not be reviewed", slog.Any("error", err))
			return unavailable("rights cannot be reviewed now; try again")
		}
		if allowed {
			return nil
		}
	}
	return rest.Errorf(http.StatusForbidden, codeForbidden, "%s may not call Maestro: %s on /%s/%s", c.user, verb,
		scope, name)
}

// recheck asks again whether a subscription may go on: rules change, tokens
// end. That nobody can be asked now ends nothing.
func (s *Server) recheck(ctx context.Context, scope rpcScope, name string) error {
	c, _ := ctx.Value(rpcCallerKey{}).(rpcCaller)
	err := error(nil)
	if c.bearer != "" {
		_, err = s.authenticateToken(ctx, c.bearer)
	}
	if err == nil {
		err = s.authorize(ctx, verbSubscribe, scope, name)
	}
	if e, ok := err.(*rest.Error); ok && (e.Status == http.StatusForbidden || e.Status == http.StatusUnauthorized) {
		return fmt.Errorf("the subscription may not go on: %w", err)
	}
	return nil
}
