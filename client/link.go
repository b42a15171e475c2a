package client

import (
	"context"
	"net/http"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
)

const (
	pathLinks        = "/api/v0/links"
	pathLinkCodes    = "/api/v0/authz/link_codes"
	pathAccountLinks = "/api/v0/authz/links"
)

// RedeemLink links the identity of the client's token to the principal of a link code, and so uses up the code.
// The error has status 403 for a code that the region does not accept, and 409 when the identity is linked already.
func (p *Client) RedeemLink(ctx context.Context, code string) (platform.Link, error) {
	var link platform.Link
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: pathLinks,
		Header: http.Header{"X-Atoll-Link-Code": {code}}})
	if err != nil {
		return link, err
	}
	err = decode(doc, &link)
	return link, err
}

// CreateLinkCode makes a code that links one external identity to a principal of the account, once.
func (a *Authorization) CreateLinkCode(ctx context.Context, r platform.LinkCodeRequest) (platform.LinkCode, error) {
	var code platform.LinkCode
	err := a.client.send(ctx, remote.Request{Method: http.MethodPost, Path: pathLinkCodes, Query: a.query()}, r, &code)
	return code, err
}

// LinkCodes returns the link codes of the account that nobody has redeemed, without the codes themselves. Expired codes
// stay in the list for a day.
func (a *Authorization) LinkCodes(ctx context.Context) ([]platform.ListedLinkCode, error) {
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.ListedLinkCode, error) {
		var list platform.LinkCodeList
		err := a.client.list(ctx, pathLinkCodes, a.query(), limit, offset, &list)
		return list.Items, err
	})
}

// DeleteLinkCode withdraws a link code by its id: nobody can redeem it from then on.
func (a *Authorization) DeleteLinkCode(ctx context.Context, id string) error {
	return a.client.sendDelete(ctx, pathOf(pathLinkCodes, id), a.query())
}

// Links returns the links of the account.
func (a *Authorization) Links(ctx context.Context) ([]platform.Link, error) {
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.Link, error) {
		var list platform.LinkList
		err := a.client.list(ctx, pathAccountLinks, a.query(), limit, offset, &list)
		return list.Items, err
	})
}

// DeleteLink removes a link: the region then refuses requests with tokens of its identity.
func (a *Authorization) DeleteLink(ctx context.Context, id string) error {
	return a.client.sendDelete(ctx, pathOf(pathAccountLinks, id), a.query())
}
