package maestro

import (
	"context"
	"net/http"

	"google.golang.org/grpc/credentials"
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
	user   string   // for people: in errors, rules and reviews
	groups []string // likewise
	peer   pki.Name // proven by a certificate of the region's CA, or ""
	plain  bool     // came by a plain listener, which exists for loopback only
}

type rpcCallerKey struct{}

func withRPCCaller(ctx context.Context, c rpcCaller) context.Context {
	return context.WithValue(ctx, rpcCallerKey{}, c)
}

// authenticate proves who calls. The error is a *rest.Error.
func (s *Server) authenticate(ctx context.Context, secure bool) (rpcCaller, error) {
	if !secure {
		return rpcCaller{user: "anonymous", plain: true}, nil
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			if name, err := pki.PeerName(&info.State); err == nil {
				return rpcCaller{user: string(name), peer: name}, nil
			}
		}
	}
	return rpcCaller{}, rest.Errorf(http.StatusUnauthorized, "maestro-15", "a client certificate of the region's CA is needed")
}

// authorize decides whether the caller may do that. The region's own rule
// comes first: its services may act for all sources, an agent for the cluster
// that its certificate names and for no other (I7).
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
	}
	return rest.Errorf(http.StatusForbidden, codeForbidden, "%s may not call Maestro: %s on /%s/%s", c.user, verb, scope, name)
}
