package store

import "context"

// Actor identifies the author of a change. The history records it in the transaction of the change.
type Actor struct {
	Principal string // ARN, or system:<service>
	Account   string
	RequestID string
	// Audit is a JSON object about the request: how the caller proved the principal, which action it requested, and
	// which policy permitted that. The store writes an audit record of each change whose actor has Audit;
	// Store.ListAudit returns these. "": the change has a history record only.
	Audit string
}

type actorKey struct{}

// WithActor returns a context whose changes are recorded as made by a.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorFrom returns the actor of the context, or the zero Actor.
func ActorFrom(ctx context.Context) Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return a
}
