package remote

import (
	"context"

	"atoll.dev/api/audit"
)

// Actor names the person or service for whom a service calls another one. The called service accepts
// it from services of the region only.
type Actor struct {
	Principal string // ARN
	Account   string
	RequestID string
	// Audit has the members of audit records about the request, as audit.Request.Encode wrote them. Services accept it
	// from the Platform API only.
	Audit string
}

type actorKey struct{}

// WithActor returns a context whose calls name the actor.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorOf returns the actor of a context, the zero Actor when it has none.
func ActorOf(ctx context.Context) Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return a
}

// EachHeader calls set with the headers that name the actor. gRPC's metadata keys
// are the same in lower case.
func (a Actor) EachHeader(set func(name, value string)) {
	for _, h := range [...]struct{ name, value string }{
		{"X-Atoll-Principal", a.Principal},
		{"X-Atoll-Account", a.Account},
		{"X-Atoll-Request-Id", a.RequestID},
		{audit.Header, a.Audit},
	} {
		if h.value != "" {
			set(h.name, h.value)
		}
	}
}
