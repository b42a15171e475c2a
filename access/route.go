package access

import (
	"cmp"
	"net/http"
	"strconv"

	"atoll.dev/internal/rest"
)

// Action is what a route does, as policies name it: CreateCluster. Each route
// has one.
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

// Escalation is a query parameter that makes a request more than its route's action:
// DELETE /clusters/{id} with force=true is ForceDeleteCluster, too. The Router decides
// about both actions.
type Escalation struct {
	Parameter string // true or false; other values are the handler's to refuse
	Action    Action
	Audience  Audience
}

// isRequested reports whether a request has the parameter, and it is true.
func (e Escalation) isRequested(r *http.Request) bool {
	requested, err := strconv.ParseBool(r.URL.Query().Get(e.Parameter))
	return err == nil && requested
}

// on returns the route of the escalated action.
func (e Escalation) on(route Route) Route {
	route.Action, route.Audience = e.Action, e.Audience
	return route
}

// pattern is the route as http.ServeMux takes it.
func (r Route) pattern() string { return r.Method + " " + r.Path }

// Policy decides what identified callers may do.
type Policy interface {
	// Decide returns nil when the caller may take the route's action on the
	// resource with the id ("" for a collection), and otherwise a *rest.Error
	// with status 403. A request that no route matches is decided on as well,
	// with a Route that has an empty Action. Several goroutines may call it.
	Decide(caller Identity, route Route, id string) error
}

// PrivilegedOnly is the policy of a region without policies: privileged accounts
// may take every action, other accounts none.
type PrivilegedOnly struct{}

// Decide implements Policy.
func (PrivilegedOnly) Decide(caller Identity, _ Route, _ string) error {
	if !caller.Privileged {
		return refuse(NotPrivileged, "the account %s is not privileged; an operator of the region can make it so",
			caller.Account)
	}
	return nil
}

// decide decides about one request. A route for operators is refused to others
// whatever the policy says.
func decide(policy Policy, caller Identity, route Route, id string) *rest.Error {
	if err := policy.Decide(caller, route, id); err != nil {
		return asRefusal(err)
	}
	if route.Audience == Operators && !caller.Privileged {
		return refuse(NotPrivileged, "this is for the region's operators; the account %s is not privileged",
			caller.Account)
	}
	return nil
}

// asRefusal returns the error of an Identifier or a Policy as an answer. An
// error that is no *rest.Error refuses the request, too.
func asRefusal(err error) *rest.Error {
	if e, ok := err.(*rest.Error); ok {
		return e
	}
	return rest.Errorf(http.StatusInternalServerError, "", "the request could not be decided on").Because(err)
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
