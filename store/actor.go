package store

import "context"

// Actor identifies the author of a change. The history records it in the transaction of the change.
type Actor struct {
	Principal string // ARN, or system:<service>
	Account   string
	RequestID string
	// Audit is a JSON object about the request: how the principal was proved, what it asked for, and why it may.
	// With it, each change leaves an audit record: Store.Audit returns these. "": the history has the changes, and
	// the audit does not.
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
