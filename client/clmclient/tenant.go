package clmclient

import (
	"context"
	"errors"
	"net/http"
)

// TenantHeader names the account whose resources a call of a region's lifecycle
// manager is about.
const TenantHeader = "X-Atoll-Tenant-Account"

type tenantKey struct{}

// WithTenant makes the calls of CLM with this context see, change and make the
// resources of one account, and no others. Calls without a tenant are the
// system's and see all, so those that name an empty one fail unsent.
func WithTenant(ctx context.Context, account string) context.Context {
	return context.WithValue(ctx, tenantKey{}, account)
}

// setTenant names the tenant of a request's context, if it has one.
func setTenant(r *http.Request) error {
	account, tenant := r.Context().Value(tenantKey{}).(string)
	switch {
	case !tenant:
		return nil
	case account == "":
		return errors.New("the tenant has no account")
	}
	r.Header.Set(TenantHeader, account)
	return nil
}
