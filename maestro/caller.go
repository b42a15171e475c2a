package maestro

import (
	"context"
	"net/http"

	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// Names of the headers, and in lower case of the gRPC metadata, in which a
// service names the principal and account for which it calls.
const (
	headerPrincipal = "X-Atoll-Principal"
	headerAccount   = "X-Atoll-Account"
	headerRequestID = "X-Atoll-Request-Id"
)

// admit refuses a peer of a TLS listener that has no certificate of the region,
// or that may not call Maestro. Callers of a plain listener have no identity and
// are not checked: such a listener exists only on loopback, when configured.
func (s *Server) admit(peer pki.Name) error {
	switch {
	case peer == "":
		return rest.Errorf(http.StatusUnauthorized, "maestro-15", "a client certificate of the region's CA is needed")
	case !s.opts.MayCall(string(peer)):
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden, "%s may not call Maestro", peer)
	}
	return nil
}

// withCaller returns a context whose actor the store records with each change.
// Only the region's own services may name another actor in headers.
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
