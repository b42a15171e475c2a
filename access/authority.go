package access

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// Question asks a Policy whether a caller may take an action on a resource.
type Question struct {
	Caller   Identity
	Action   Action // "" for a request that no route matches
	Audience Audience
	Resource policy.Resource
	Context  policy.Context

	// Complete reads the members of the resource that the request does not have: its cluster and its
	// tags. Nil: the resource is complete.
	Complete func(ctx context.Context, of policy.Resource) (policy.Resource, error)
}

// Grant is why a caller may take an action.
type Grant struct {
	// Reason is "privileged", "administrator" or "policy"; "" when everybody may.
	Reason string
	// Policies are the ids of the policies that permit it.
	Policies []string
}

// Resources finds for a Router the resources that requests name.
type Resources interface {
	// Identify returns the resource of a request, as far as its path, query and body show it. It
	// reads nothing else.
	Identify(r *http.Request, caller Identity, route Route) policy.Resource
	// Complete reads the cluster and the tags of a resource. A resource that does not exist is
	// returned as it is. The error is a *rest.Error. The handler of the request may use what
	// Complete has read, by the request's context.
	Complete(ctx context.Context, caller Identity, of policy.Resource) (policy.Resource, error)
}

// Authority decides on further actions within one request: on each item of a list, and on a change
// that needs a second action.
type Authority struct {
	policy  Policy
	caller  Identity
	context policy.Context
}

type authorityKey struct{}

// AuthorityFrom returns the authority of the request. Without a Router, which puts it there, the
// authority refuses everything.
func AuthorityFrom(ctx context.Context) Authority {
	a, _ := ctx.Value(authorityKey{}).(Authority)
	return a
}

// Check returns nil when the caller may take an action on a resource that is complete, and otherwise a
// *rest.Error. An action for operators is decided about on their routes only.
func (a Authority) Check(ctx context.Context, action Action, on policy.Resource) error {
	if a.policy == nil {
		return refuse(AccessDenied, "nothing decides about this request")
	}
	now := a.context
	now.Time = time.Now() // a watch lasts longer than the moment of its request
	_, err := a.policy.Decide(ctx, Question{Caller: a.caller, Action: action, Audience: Customers, Resource: on,
		Context: now})
	return err
}

// PermitsAll reports whether the caller may take an action on every resource of his account, so that
// a list needs no decision about each item.
func (a Authority) PermitsAll(action Action) bool {
	p, ok := a.policy.(interface {
		permitsAll(caller Identity, action Action) bool
	})
	return ok && p.permitsAll(a.caller, action)
}

// grantKey has the Grant of the request's own action.
type grantKey struct{}

// GrantFrom returns why the caller may take the action of the request.
func GrantFrom(ctx context.Context) (Grant, bool) {
	g, ok := ctx.Value(grantKey{}).(Grant)
	return g, ok
}

// contextOf returns the properties of a request on which policies may depend.
func contextOf(r *http.Request, caller Identity, region string, now time.Time) policy.Context {
	c := policy.Context{Time: now, Region: region, UserAgent: r.UserAgent(), SourceIP: caller.SourceIP}
	if c.SourceIP.IsValid() {
		return c
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil {
		c.SourceIP, _ = netip.ParseAddr(host)
	}
	return c
}

// byPath identifies resources by the parameter of the route alone.
type byPath struct{}

// Identify implements Resources.
func (byPath) Identify(r *http.Request, caller Identity, route Route) policy.Resource {
	return ResourceOf(route, r.PathValue(route.ID), caller.Account)
}

// Complete implements Resources.
func (byPath) Complete(_ context.Context, _ Identity, of policy.Resource) (policy.Resource, error) {
	return of, nil
}

// ResourceOf returns the resource with an id that the action of a route is about. An action on a
// collection is about the account, or about the region.
func ResourceOf(route Route, id string, account cluster.Account) policy.Resource {
	kind := policy.Kind(route.Kind)
	if action, known := policy.Lookup(string(route.Action)); known {
		kind = action.On
	}
	switch {
	case kind == policy.Region:
		return policy.Resource{Kind: kind}
	case kind == policy.Account && id == "":
		return policy.Resource{Kind: kind, ID: string(account), Account: account}
	case route.Audience == Operators && kind != policy.Account && kind != policy.Cluster:
		return policy.Resource{Kind: kind, ID: id}
	}
	return policy.Resource{Kind: kind, ID: id, Account: account}
}

// asRefusal returns the error of an Identifier or a Policy as an answer. An
// error that is no *rest.Error refuses the request, too.
func asRefusal(err error) *rest.Error {
	if e, ok := err.(*rest.Error); ok {
		return e
	}
	return rest.Errorf(http.StatusInternalServerError, "", "the request could not be decided on").Because(err)
}
