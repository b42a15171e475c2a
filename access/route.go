package access

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"atoll.dev/internal/rest"
)

// Action is the name of a route's operation in policies, such as CreateCluster. Each
// route has one.
type Action string

// ResourceKind is the kind of resource that an action is about: Cluster.
type ResourceKind string

// Audience is for whom a route is.
type Audience uint8

const (
	_         Audience = iota // a Route without an audience is a mistake
	Public                    // everybody, without identity
	Customers                 // every identified caller, for the resources of his account
	Operators                 // operators of the region: the route shows resources of every account
)

// Route is a route of a front and all that the decision about a request on it
// goes by.
type Route struct {
	Method   string
	Path     string // pattern of http.ServeMux without method and host
	Action   Action
	Kind     ResourceKind
	ID       string // path parameter that names the resource; "" for a collection
	Audience Audience
}

// Escalation is a query parameter with which a request takes a second action beside that of
// its route: DELETE /clusters/{id} with force=true is ForceDeleteCluster, too. The Router
// decides about both actions.
type Escalation struct {
	Parameter string
	Value     EscalationValue
	Action    Action
	Audience  Audience
}

// EscalationValue says with which values a parameter escalates a request.
type EscalationValue uint8

const (
	IfTrue  EscalationValue = iota // when it is true; the handler refuses a value that is neither true nor false
	IfGiven                        // whatever its value is, also when it is empty
)

// isRequested reports whether a request has the parameter with a value that escalates it.
func (e Escalation) isRequested(r *http.Request) bool {
	query := r.URL.Query()
	if e.Value == IfGiven {
		return query.Has(e.Parameter)
	}
	requested, err := strconv.ParseBool(query.Get(e.Parameter))
	return err == nil && requested
}

// pattern is the route as http.ServeMux takes it.
func (r Route) pattern() string { return r.Method + " " + r.Path }

// Policy decides what identified callers may do.
type Policy interface {
	// Decide returns why the caller may take the action on the resource, and otherwise a
	// *rest.Error: with status 403, or 503 while nothing can be decided. A request that no route
	// matches is decided on as well, with an empty Action. Several goroutines may call it.
	Decide(ctx context.Context, q Question) (Grant, error)
}

// PrivilegedOnly is the policy of a region without policies: privileged accounts
// may take every action, other accounts none.
type PrivilegedOnly struct{}

// Decide implements Policy.
func (PrivilegedOnly) Decide(_ context.Context, q Question) (Grant, error) {
	if !q.Caller.Privileged {
		return Grant{}, refuse(NotPrivileged,
			"the account %s is not privileged; an operator of the region can make it so", q.Caller.Account)
	}
	return Grant{Reason: privilegedReason}, nil
}

func (PrivilegedOnly) permitsAll(caller Identity, _ Action) bool { return caller.Privileged }

// decide decides about one request. An action for operators is refused to others
// under any policy. With an error, the Grant names the policies that forbid it.
func decide(ctx context.Context, policy Policy, q Question) (Grant, *rest.Error) {
	if q.Caller.linkCode != "" && q.Action != ActionCreateLink {
		return Grant{}, refuse(AccessDenied, "a link code is good for linking an identity and for nothing else")
	}
	grant, err := policy.Decide(ctx, q)
	if err != nil {
		return grant, asRefusal(err)
	}
	if q.Audience == Operators && !q.Caller.Privileged {
		return Grant{}, refuse(NotPrivileged, "this is for the region's operators; the account %s is not privileged",
			q.Caller.Account)
	}
	return grant, nil
}

// validate panics when a route lacks something that a decision needs.
func (r Route) validate() {
	for _, part := range []string{r.Method, r.Path, string(r.Action), string(r.Kind)} {
		if part == "" {
			panic("access: the route " + cmp.Or(r.pattern(), "without path") +
				" needs a method, a path, an action and a kind of resource")
		}
	}
	if r.Audience < Public || r.Audience > Operators {
		panic("access: the route " + r.pattern() + " needs an audience")
	}
}

// validate panics when an escalation lacks something that a decision needs.
func (e Escalation) validate(route Route) {
	if e.Parameter == "" || e.Action == "" || e.Audience <= Public || e.Audience > Operators {
		panic("access: an escalation of the route " + route.pattern() +
			" needs a parameter, an action and an audience of identified callers")
	}
}
