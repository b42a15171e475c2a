package clmclient

import (
	"context"
	"encoding/json"
	"net/http"

	"atoll.dev/api/clm"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

const accounts Collection = "accounts"

// Quotas returns the limit and the use of each quota of an account. A tenant may name its own account only.
func (c *Client) Quotas(ctx context.Context, account cluster.Account) (q clm.QuotaList, err error) {
	return q, c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: accounts.path(string(account), "quotas")}, &q)
}

// SetQuotas sets limits of an account by the names of quotas; nil is the region's default. ifVersion is the only
// version of the limits that the caller wants to change; 0 is any. The result has all quotas.
func (c *Client) SetQuotas(ctx context.Context, account cluster.Account, limits map[string]*int64, ifVersion int64) (
	q clm.QuotaList, err error) {
	r := remote.Request{Method: http.MethodPatch, Path: accounts.path(string(account), "quotas"), Header: http.Header{}}
	if ifVersion > 0 {
		r.Header.Set("If-Match", rest.ETag(ifVersion))
	}
	if r.Body, err = json.Marshal(clm.QuotaPatch{Limits: limits}); err != nil {
		return q, err
	}
	return q, c.doInto(ctx, r, &q)
}
