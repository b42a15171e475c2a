package access

import (
	"context"
	"strings"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
)

// Reasons of a Grant.
const (
	privilegedReason = "privileged"    // the account is privileged and has no administrators
	adminReason      = "administrator" // the caller is one, or the root of its account
	policyReason     = "policy"
)

// ActionDescribeCaller returns the caller's own identity. Every identified caller may take it.
const ActionDescribeCaller Action = "DescribeCaller"

// Decide implements Policy. In this order:
//
//  1. before the first complete read of the database, it refuses every request with 503;
//  2. a caller may ask who he is;
//  3. an account that is not provisioned may do nothing;
//  4. an identity with a link code may link itself, and nothing else;
//  5. the principals of a privileged account without administrators may do everything. This is how a
//     region begins;
//  6. administrators, and the root of the account, may do everything in their account;
//  7. the policies that are attached to the caller, his role and his groups decide.
//
// An error shows nothing about other accounts: the refusal is the same for a resource of another account, for a
// resource that does not exist, and for a resource on which the policies do not permit the action.
func (d *Directory) Decide(ctx context.Context, q Question) (Grant, error) {
	if q.Action == ActionDescribeCaller {
		return Grant{}, nil
	}
	account := string(q.Caller.Account)
	view, isFilled := d.cache.view(cluster.Account(account))
	switch {
	case !isFilled:
		return Grant{}, refuse(PoliciesNotReady, "the region has not read its policies yet; try again")
	case !view.isProvisioned:
		return Grant{}, refuse(NotProvisioned,
			"the account %s is not provisioned in this region; an operator does it with: atoll account create %s",
			account, account)
	case q.Action == ActionCreateLink && q.Caller.linkCode != "":
		return Grant{}, nil // the code decides
	case q.Action == "":
		return Grant{}, nil // 404 and 405 show nothing that the API's document does not
	case view.isFree() && q.Caller.Privileged:
		return Grant{Reason: privilegedReason}, nil
	case view.isAdmin(q.Caller.Principal):
		return Grant{Reason: adminReason}, nil
	}
	ask := policy.Query{
		Principal: q.Caller.Principal,
		Account:   cluster.Account(account),
		Groups:    view.groups(q.Caller.Principal),
		Action:    string(q.Action),
		Resource:  q.Resource,
		Context:   q.Context,
	}
	if q.Complete != nil && view.policies.ReadsResource(ask) {
		of, err := q.Complete(ctx, q.Resource)
		if err != nil {
			return Grant{}, err
		}
		ask.Resource = of
	}
	decision, err := view.policies.Decide(ask)
	switch {
	case err != nil:
		return Grant{}, refuse(AccessDenied, "%s may not %s: the request could not be decided on",
			q.Caller.Principal, q.Action)
	case decision.Allowed:
		return Grant{Reason: policyReason, Policies: decision.Policies}, nil
	case len(decision.Policies) > 0:
		e := refuse(AccessDenied, "%s may not %s here: forbidden by the policy %s", q.Caller.Principal, q.Action,
			strings.Join(decision.Policies, ", "))
		return Grant{Policies: decision.Policies}, e
	}
	return Grant{}, refuse(AccessDenied,
		"%s may not %s here: no policy permits it; an administrator of the account attaches one with: "+
			"atoll policy attach", q.Caller.Principal, q.Action)
}

func (d *Directory) permitsAll(caller Identity, action Action) bool {
	view, isFilled := d.cache.view(caller.Account)
	if !isFilled || !view.isProvisioned {
		return false
	}
	return view.isFree() && caller.Privileged || view.isAdmin(caller.Principal) || view.policies.PermitsAll(policy.Query{
		Principal: caller.Principal, Action: string(action), Groups: view.groups(caller.Principal)})
}

// isFree reports whether an account is privileged and has no administrators, so that its principals may do
// everything. The account and its administrators are several documents: one whose status counts
// administrators has some, also while the documents of these were not read.
func (v *accountView) isFree() bool {
	return v.isPrivileged && len(v.admins) == 0 && !v.countsAdmins
}

// isAdmin reports whether a principal is an administrator: a principal in the account's list of administrators, a
// session of a role in that list, or the root of the account.
func (v *accountView) isAdmin(principal policy.Principal) bool {
	parts := strings.Split(string(principal), ":") // arn, partition, iam, "", account, root
	isRoot := len(parts) == 6 && parts[2] == "iam" && parts[5] == "root"
	return isRoot || v.admins[principal] || v.admins[policy.RoleOf(principal)]
}

// groups returns the ids of the groups that a principal, or its role, is a member of.
func (v *accountView) groups(principal policy.Principal) []string {
	groups := v.groupsOf[principal]
	if role := policy.RoleOf(principal); role != "" {
		groups = append(groups[:len(groups):len(groups)], v.groupsOf[role]...)
	}
	return groups
}

// Caller has the properties of a principal that the policies read.
type Caller struct {
	IsProvisioned, IsPrivileged, IsAdmin bool
	Groups                               []string // ids
}

// Caller returns the rights and groups of a principal of an account, from memory.
func (d *Directory) Caller(account cluster.Account, principal policy.Principal) Caller {
	view, _ := d.cache.view(account)
	return Caller{IsProvisioned: view.isProvisioned, IsPrivileged: view.isPrivileged,
		IsAdmin: view.isProvisioned && view.isAdmin(principal), Groups: view.groups(principal)}
}
