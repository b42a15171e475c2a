package client

import (
	"context"
	"net/http"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

// Quotas returns the limit and the use of each quota of the caller's account.
func (p *Client) Quotas(ctx context.Context) (platform.QuotaList, error) {
	var list platform.QuotaList
	err := p.get(ctx, "/api/v0/quotas", nil, &list)
	return list, err
}

// AccountQuotas returns the limit and the use of each quota of an account. It is for operators.
func (p *Client) AccountQuotas(ctx context.Context, account AccountID) (platform.QuotaList, error) {
	var list platform.QuotaList
	err := p.get(ctx, pathOf(pathAccounts, string(account))+"/quotas", nil, &list)
	return list, err
}

// SetAccountQuotas sets limits of an account by the names of quotas; nil is the region's default. It is for operators.
// A limit below the use deletes nothing; the region refuses to create more.
func (p *Client) SetAccountQuotas(ctx context.Context, account AccountID, limits map[string]*int64) (platform.QuotaList,
	error) {
	var list platform.QuotaList
	path := pathOf(pathAccounts, string(account)) + "/quotas"
	err := p.send(ctx, remote.Request{Method: http.MethodPatch, Path: path}, platform.QuotaRequest{Limits: limits}, &list)
	return list, err
}
