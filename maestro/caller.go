package maestro

import (
	"context"
	"net/http"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// Names of the headers, and in lower case of the gRPC metadata, by which a
// service says on whose behalf it calls.
const (
	headerPrincipal = "X-Atoll-Principal"
	headerAccount   = "X-Atoll-Account"
	headerRequestID = "X-Atoll-Request-Id"
)

// admit decides whether a peer may call at all. A plain listener has no peers
// to tell apart; it exists only on loopback and when asked for.
func (s *Server) admit(peer pki.Name, secure bool) error {
	switch {
	case !secure:
		return nil
	case peer == "":
		return rest.Errorf(http.StatusUnauthorized, "maestro-15", "a client certificate of the region's CA is needed")
	case !s.opts.MayCall(string(peer)):
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden, "%s may not call Maestro", peer)
	}
	return nil
}

// withCaller makes what the call changes be recorded as made by its actor. Only
// the region's own services are believed when they name one.
func withCaller(ctx context.Context, peer pki.Name, header func(string) string, operationID string) context.Context {
	a := store.Actor{Principal: string(peer), RequestID: operationID}
	if peer == "" {
		a.Principal = "anonymous"
	}
	if peer.IsService() {
		if p := header(headerPrincipal); p != "" {
			a.Principal = p
		}
		a.Account = header(headerAccount)
		if id := header(headerRequestID); id != "" {
			a.RequestID = id
		}
	}
	return store.WithActor(ctx, a)
}
