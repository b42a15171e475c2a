package records

import (
	"context"

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

// WithActor returns a context whose actor the store records with each change: the authenticated
// caller peer, or "anonymous" when peer is "". Only the region's own services may name another actor,
// in headers. header returns the value of a header, and "" when the request does not have it.
func WithActor(ctx context.Context, peer pki.Name, header func(string) string, operationID string) context.Context {
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
