package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

const (
	pathAccounts = "/api/v0/accounts"
	pathWhoAmI   = "/api/v0/whoami"
)

// WhoAmI returns the caller's principal, its account, and whether it is an administrator. Every caller with
// a key pair may call it, also a caller whose account is not provisioned.
func (p *Client) WhoAmI(ctx context.Context) (platform.Caller, error) {
	var caller platform.Caller
	err := p.get(ctx, pathWhoAmI, nil, &caller)
	return caller, err
}

// CreateAccount provisions an account. It is for operators. The error has status 409 when the account
// exists.
func (p *Client) CreateAccount(ctx context.Context, r platform.AccountRequest) (platform.Account, error) {
	var account platform.Account
	err := p.send(ctx, remote.Request{Method: http.MethodPost, Path: pathAccounts}, r, &account)
	return account, err
}

// Account returns one account. It is for operators.
func (p *Client) Account(ctx context.Context, id AccountID) (platform.Account, error) {
	var account platform.Account
	err := p.get(ctx, pathOf(pathAccounts, string(id)), nil, &account)
	return account, err
}

// Accounts returns all accounts by id. It is for operators.
func (p *Client) Accounts(ctx context.Context) ([]platform.Account, error) {
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.Account, error) {
		var list platform.AccountList
		err := p.list(ctx, pathAccounts, nil, limit, offset, &list)
		return list.Items, err
	})
}

// DeleteAccount deletes an account with its administrators, groups, policies and attachments. It is
// for operators. The error has status 409 while the account has clusters.
func (p *Client) DeleteAccount(ctx context.Context, id AccountID) error {
	return p.sendDelete(ctx, pathOf(pathAccounts, string(id)), nil)
}

// send sends body as JSON with a request, and decodes the answer into v.
func (p *Client) send(ctx context.Context, r remote.Request, body, v any) (err error) {
	if r.Body, err = json.Marshal(body); err != nil {
		return err
	}
	doc, _, err := p.http.Do(ctx, r)
	if err != nil {
		return err
	}
	return decode(doc, v)
}

// sendDelete sends a DELETE.
func (p *Client) sendDelete(ctx context.Context, path string, q url.Values) error {
	_, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: path, Query: q})
	return err
}
