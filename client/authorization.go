package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

const (
	pathAdmins = "/api/v0/authz/admins"
	pathCheck  = "/api/v0/authz/check"
)

// Authorization reads and changes the administrators, groups, policies and attachments of one
// account. Its methods are safe for concurrent use.
type Authorization struct {
	client  *Client
	account AccountID
}

// Authorization returns the Authorization of an account; "" is the caller's own account. Only
// operators may name another account: the calls of other callers fail with status 403.
func (p *Client) Authorization(account AccountID) *Authorization {
	return &Authorization{p, account}
}

// query returns the parameter that names the account.
func (a *Authorization) query() url.Values {
	q := url.Values{}
	remote.SetNonEmpty(q, "accountId", string(a.account))
	return q
}

// Admins returns the ARNs of the account's administrators.
func (a *Authorization) Admins(ctx context.Context) ([]string, error) {
	var list platform.AdminList
	err := a.client.get(ctx, pathAdmins, a.query(), &list)
	return list.Items, err
}

// AddAdmin makes a principal of the account an administrator, who may take every action in the
// account. The error has status 409 when the principal is an administrator already.
func (a *Authorization) AddAdmin(ctx context.Context, principal string) (platform.Admin, error) {
	var admin platform.Admin
	err := a.client.send(ctx, remote.Request{Method: http.MethodPost, Path: pathAdmins, Query: a.query()},
		platform.AdminRequest{PrincipalArn: principal}, &admin)
	return admin, err
}

// RemoveAdmin ends a principal's rights of an administrator; policies decide for it again. The error has status 409
// for the last administrator of a privileged account.
func (a *Authorization) RemoveAdmin(ctx context.Context, principal string) error {
	return a.client.sendDelete(ctx, pathOf(pathAdmins, principal), a.query())
}

// Check returns the decision that a request of a principal of the account would get. It executes nothing.
func (a *Authorization) Check(ctx context.Context, r platform.AuthorizationRequest) (platform.AuthorizationDecision,
	error) {
	var decision platform.AuthorizationDecision
	err := a.client.send(ctx, remote.Request{Method: http.MethodPost, Path: pathCheck, Query: a.query()}, r, &decision)
	return decision, err
}

// notFound returns the error of a name that the account does not have.
func notFound(kind, name string) error {
	return &remote.Error{Status: http.StatusNotFound, Code: "not-found",
		Reason: fmt.Sprintf("the account has no %s %q", kind, name)}
}
