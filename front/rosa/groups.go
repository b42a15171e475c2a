package rosa

import (
	"cmp"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

func toGroup(d access.GroupDocument) platform.Group {
	return platform.Group{Kind: "Group", GroupID: d.ID, Name: d.Name, Description: d.Description,
		CreatedAt: d.CreatedAt, CreatedBy: d.CreatedBy}
}

func (f *front) createGroup(a *accountRequest) error {
	var body platform.GroupRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	if err := checkName(body.Name, body.Description); err != nil {
		return err
	}
	made, err := a.directory.CreateGroup(a.r.Context(), access.GroupDocument{
		Document: access.Document{Account: a.account}, Name: body.Name, Description: body.Description,
	})
	if err != nil {
		return err
	}
	return a.created(made.ID, made.Version, toGroup(made))
}

func (f *front) listGroups(a *accountRequest) error {
	w, err := a.readWindow()
	if err != nil {
		return err
	}
	found, total, err := a.directory.Groups(a.r.Context(), a.account, w)
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, platform.GroupList{Kind: "GroupList", Items: convertAll(found, toGroup),
		Total: total, Limit: w.Limit, Offset: w.Offset})
}

func (f *front) getGroup(a *accountRequest) error {
	found, err := a.directory.Group(a.r.Context(), a.account, a.r.PathValue("id"))
	if err != nil {
		return err
	}
	return a.write(http.StatusOK, found.Version, toGroup(found))
}

func (f *front) deleteGroup(a *accountRequest) error {
	version, err := a.readVersion()
	if err != nil {
		return err
	}
	return a.noContent(a.directory.DeleteGroup(a.r.Context(), a.account, a.r.PathValue("id"), version))
}

func (a *accountRequest) writeMembers(g access.GroupDocument) error {
	members := append([]string{}, g.Members...)
	return a.write(http.StatusOK, g.Version, platform.MemberList{Kind: "MemberList", Items: members, Total: len(members)})
}

func (f *front) listMembers(a *accountRequest) error {
	found, err := a.directory.Group(a.r.Context(), a.account, a.r.PathValue("id"))
	if err != nil {
		return err
	}
	return a.writeMembers(found)
}

func (f *front) updateMembers(a *accountRequest) error {
	version, err := a.readVersion()
	if err != nil {
		return err
	}
	var body platform.MemberUpdate
	if err := a.readJSON(&body); err != nil {
		return err
	}
	stored, err := a.directory.UpdateMembers(a.r.Context(), a.account, a.r.PathValue("id"), version, body.Add, body.Remove)
	if err != nil {
		return err
	}
	return a.writeMembers(stored)
}

func (f *front) createAdmin(a *accountRequest) error {
	var body platform.AdminRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	if err := a.directory.CreateAdmin(a.r.Context(), a.account, policy.Principal(body.PrincipalArn)); err != nil {
		return err
	}
	return a.write(http.StatusCreated, 0, platform.Admin{Kind: "Admin", PrincipalArn: body.PrincipalArn})
}

func (f *front) listAdmins(a *accountRequest) error {
	if _, err := a.directory.Account(a.r.Context(), a.account); err != nil {
		return err
	}
	arns, err := a.directory.Admins(a.r.Context(), a.account)
	if err != nil {
		return err
	}
	arns = append([]string{}, arns...)
	return a.write(http.StatusOK, 0, platform.AdminList{Kind: "AdminList", Items: arns, Total: len(arns)})
}

func (f *front) deleteAdmin(a *accountRequest) error {
	return a.noContent(a.directory.DeleteAdmin(a.r.Context(), a.account, policy.Principal(a.r.PathValue("arn"))))
}

// checkAuthorization decides as the Router would decide for the principal. It reads no cluster: the
// request has the tags.
func (f *front) checkAuthorization(a *accountRequest) error {
	var body platform.AuthorizationRequest
	if err := a.readJSON(&body); err != nil {
		return err
	}
	if parts := strings.Split(body.Principal, ":"); len(parts) != 6 || cluster.Account(parts[4]) != a.account {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "principal is not an ARN of the account %s", a.account)
	}
	action, known := policy.Lookup(body.Action)
	if !known {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "action %s does not exist", quote(body.Action))
	}
	of := policy.Resource{Kind: action.On, Account: a.account, Tags: body.ResourceTags, Cluster: body.ClusterID}
	if id, ok := resourceID(body.Resource, action.On, a.account); ok {
		of.ID = id
	} else {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid,
			"resource is neither * nor like arn:aws:rosa:%s:%s:%s/ID, which %s is about", f.region, a.account,
			strings.ToLower(string(action.On)), body.Action)
	}
	ctx := policy.Context{Region: f.region, Time: time.Now(), UserAgent: body.Context.UserAgent, MFA: body.Context.Mfa}
	if body.Context.Time != nil {
		ctx.Time = *body.Context.Time
	}
	address, err := netip.ParseAddr(cmp.Or(body.Context.SourceIP, "127.0.0.1"))
	if err != nil {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "context.sourceIp is not an address")
	}
	ctx.SourceIP = address
	caller := a.directory.Caller(a.account, policy.Principal(body.Principal))
	grant, err := a.directory.Decide(a.r.Context(), access.Question{
		Caller: access.Identity{Principal: policy.Principal(body.Principal), Account: a.account,
			Privileged: caller.IsPrivileged},
		Action: access.Action(body.Action), Audience: access.Customers, Resource: of, Context: ctx,
	})
	if err == nil && action.IsForOperators() && !caller.IsPrivileged {
		err = rest.Errorf(http.StatusForbidden, string(access.NotPrivileged),
			"%s is for the region's operators; the account %s is not privileged", body.Action, a.account)
	}
	answer := platform.AuthorizationDecision{Kind: "AuthorizationDecision", Decision: "ALLOW", Reason: grant.Reason,
		Policies: append([]string{}, grant.Policies...)}
	if e, refused := err.(*rest.Error); refused {
		if e.Status != http.StatusForbidden {
			return e
		}
		answer.Decision, answer.Reason = "DENY", e.Reason
	} else if err != nil {
		return err
	}
	return a.write(http.StatusOK, 0, answer)
}

// resourceID returns the id in the ARN of a resource of a kind; "" for *. An action on a collection is
// about the account, whatever the ARN names.
func resourceID(arn string, kind policy.Kind, account cluster.Account) (id string, ok bool) {
	if arn == "*" {
		if kind == policy.Account {
			return string(account), true
		}
		return "", true
	}
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "rosa" || cluster.Account(parts[4]) != account {
		return "", false
	}
	if kind == policy.Account {
		return string(account), true
	}
	noun, id, ok := strings.Cut(parts[5], "/")
	return strings.TrimSuffix(id, "*"), ok && noun == strings.ToLower(string(kind))
}
