package client

import (
	"context"
	"net/http"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

// Quotas returns what the caller's account may have, and has.
func (p *Client) Quotas(ctx context.Context) (platform.QuotaList, error) {
	var list platform.QuotaList
	err := p.get(ctx, "/api/v0/quotas", nil, &list)
	return list, err
}

// AccountQuotas returns what an account may have, and has. It is for operators.
func (p *Client) AccountQuotas(ctx context.Context, account AccountID) (platform.QuotaList, error) {
	var list platform.QuotaList
	err := p.get(ctx, below(pathAccounts, string(account))+"/quotas", nil, &list)
	return list, err
}

// SetAccountQuotas sets limits of an account by the names of quotas; nil is the region's default. It is for operators.
// A limit below the use deletes nothing and admits nothing more.
func (p *Client) SetAccountQuotas(ctx context.Context, account AccountID, limits map[string]*int64) (platform.QuotaList,
	error) {
	var list platform.QuotaList
	err := p.send(ctx, remote.Request{Method: http.MethodPatch, Path: below(pathAccounts, string(account)) + "/quotas"},
		platform.QuotaRequest{Limits: limits}, &list)
	return list, err
}
