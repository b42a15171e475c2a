package rosa

import (
	"net/http"
	"time"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
)

// defaultLinkCodeValid is how long a link code is valid when its request names no time.
const defaultLinkCodeValid = 24 * time.Hour

// createLinkCode makes a link code. A code for an administrator needs the right to make one; a code of another
// account that is privileged needs the right to make such accounts.
func (f *front) createLinkCode(a *accountRequest) error {
	var body platform.LinkCodeRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	ctx := a.r.Context()
	of := a.directory.Caller(a.account, policy.Principal(body.PrincipalArn))
	if body.Admin || of.IsAdmin {
		on := policy.Resource{Kind: policy.Account, ID: string(a.account), Account: a.account}
		if err := access.AuthorityFrom(ctx).Check(ctx, "CreateAdmin", on); err != nil {
			return err
		}
	}
	if of.IsPrivileged && a.account != a.caller.Account {
		on := policy.Resource{Kind: policy.Region}
		if err := access.AuthorityFrom(ctx).Check(ctx, "CreatePrivilegedAccount", on); err != nil {
			return err
		}
	}
	valid := time.Duration(body.ValidSeconds) * time.Second
	if body.ValidSeconds == 0 {
		valid = defaultLinkCodeValid
	}
	expires := time.Now().Add(valid).UTC().Truncate(time.Second)
	code, err := a.directory.CreateLinkCode(ctx, access.LinkCode{Account: a.account,
		Principal: policy.Principal(body.PrincipalArn),
		Admin:     body.Admin, Expires: expires})
	if err != nil {
		return err
	}
	a.w.Header().Set("Cache-Control", "no-store")
	return a.write(http.StatusCreated, 0, platform.LinkCode{Kind: "LinkCode", Code: code, AccountID: string(a.account),
		PrincipalArn: body.PrincipalArn, Admin: body.Admin, ExpiresAt: expires})
}

// listLinkCodes shows the codes of an account that nobody has redeemed. The answer has no code.
func (f *front) listLinkCodes(a *accountRequest) error {
	w, err := a.readWindow()
	if err != nil {
		return err
	}
	if _, err := a.directory.Account(a.r.Context(), a.account); err != nil {
		return err
	}
	found, total, err := a.directory.AccountLinkCodes(a.r.Context(), a.account, w)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, platform.LinkCodeList{Kind: "LinkCodeList",
		Items: convertAll(found, toLinkCode), Total: total, Limit: w.Limit, Offset: w.Offset})
}

func (f *front) deleteLinkCode(a *accountRequest) error {
	return a.noContent(a.directory.DeleteLinkCode(a.r.Context(), a.account, a.r.PathValue("id")))
}

func toLinkCode(c access.LinkCode) platform.ListedLinkCode {
	return platform.ListedLinkCode{Kind: "LinkCode", ID: c.ID, PrincipalArn: string(c.Principal), Admin: c.Admin,
		ExpiresAt: c.Expires, CreatedBy: c.CreatedBy}
}

// redeemLink links the identity of the caller's token to the principal of the code in its header.
func (f *front) redeemLink(a *accountRequest) error {
	link, err := a.directory.RedeemLink(a.r.Context(), a.caller)
	if err != nil {
		return err
	}
	return a.write(http.StatusCreated, 0, toLink(link))
}

func (f *front) listLinks(a *accountRequest) error {
	w, err := a.readWindow()
	if err != nil {
		return err
	}
	if _, err := a.directory.Account(a.r.Context(), a.account); err != nil {
		return err
	}
	found, total, err := a.directory.AccountLinks(a.r.Context(), a.account, w)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, platform.LinkList{Kind: "LinkList", Items: convertAll(found, toLink), Total: total,
		Limit: w.Limit, Offset: w.Offset})
}

func (f *front) deleteLink(a *accountRequest) error {
	return a.noContent(a.directory.DeleteLink(a.r.Context(), a.account, a.r.PathValue("id")))
}

func toLink(l access.Link) platform.Link {
	return platform.Link{Kind: "Link", ID: l.ID, PrincipalArn: string(l.Principal), Issuer: l.Issuer, Subject: l.Subject,
		CreatedAt: l.CreatedAt}
}
