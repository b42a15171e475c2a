package clmclient

import (
	"context"
	"errors"
	"net/http"

	"atoll.dev/cluster"
)

// TenantHeader is the header that restricts a call to the resources of one account.
const TenantHeader = "X-Atoll-Tenant-Account"

type tenantKey struct{}

// WithTenant restricts the calls of a Client with this context to the resources of one account. Calls
// without a tenant are the system's and reach all resources; therefore a call with an empty account
// fails before it is sent.
func WithTenant(ctx context.Context, account cluster.Account) context.Context {
	return context.WithValue(ctx, tenantKey{}, account)
}

// tenantOf returns the account of WithTenant, "" if ctx has none.
func tenantOf(ctx context.Context) cluster.Account {
	account, _ := ctx.Value(tenantKey{}).(cluster.Account)
	return account
}

// setTenant sets the header of the tenant that a request's context has.
func setTenant(r *http.Request) error {
	tenant := r.Context().Value(tenantKey{})
	if tenant == nil {
		return nil
	}
	// A tenant of another type panics: without the header, the request would reach the resources of all tenants.
	account := tenant.(cluster.Account)
	if account == "" {
		return errors.New("the tenant has no account")
	}
	r.Header.Set(TenantHeader, string(account))
	return nil
}
