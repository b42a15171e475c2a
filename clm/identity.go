package clm

import (
	"context"
	"net/http"

	"atoll.dev/store"
)

// Caller is who sent a request.
type Caller struct {
	Name    string // goes into created_by and its like
	Account string
	// System says that the caller is one of the region's services. Others may
	// not report statuses on a server with tenancy.
	System bool
	// Tenancy is what the caller may see and what it makes, nil when tenancy is
	// off or the caller is the system.
	Tenancy map[string]string
}

// Identifier finds out who sent a request.
type Identifier func(*http.Request) (Caller, error)

type callerKey struct{}

// withCaller makes what the request changes be recorded as its caller's.
func withCaller(ctx context.Context, c Caller, requestID string) context.Context {
	ctx = store.WithActor(ctx, store.Actor{Principal: c.Name, Account: c.Account, RequestID: requestID})
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
