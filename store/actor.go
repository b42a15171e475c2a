package store

import "context"

// Actor is who makes a change; it is recorded in the history in the change's transaction.
type Actor struct {
	Principal string // ARN, or system:<service>
	Account   string
	RequestID string
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
