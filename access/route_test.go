package access

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"atoll.dev/internal/rest"
)

// fixedIdentity identifies every sender as one caller.
type fixedIdentity Identity

func (f fixedIdentity) Identify(*http.Request) (Identity, []byte, error) {
	return Identity(f), nil, nil
}

// recordingPolicy allows everything and records what it decided about.
type recordingPolicy struct {
	action   Action
	audience Audience
	id       string
}

func (p *recordingPolicy) Decide(_ context.Context, q Question) (Grant, error) {
	p.action, p.audience, p.id = q.Action, q.Audience, q.Resource.ID
	return Grant{}, nil
}

func TestARouteNeedsAllThatADecisionGoesBy(t *testing.T) {
	good := Route{"GET", "/clusters/{id}", "DescribeCluster", "Cluster", "id", Customers}
	for name, spoil := range map[string]func(*Route){
		"method":            func(r *Route) { r.Method = "" },
		"path":              func(r *Route) { r.Path = "" },
		"action":            func(r *Route) { r.Action = "" },
		"kind":              func(r *Route) { r.Kind = "" },
		"audience":          func(r *Route) { r.Audience = 0 },
		"a known audience":  func(r *Route) { r.Audience = Operators + 1 },
		"nothing, it works": func(*Route) {},
	} {
		route := good
		spoil(&route)
		func() {
			defer func() {
				if refused := recover() != nil; refused != (route != good) {
					t.Errorf("a route without %s: refused %v", name, refused)
				}
			}()
			NewRouter(Options{Identifier: fixedIdentity{}}).Handle(route, notFound)
		}()
	}
}

func TestThePolicyDecidesByTheRouteAndItsResource(t *testing.T) {
	policy := &recordingPolicy{}
	rt := NewRouter(Options{Identifier: fixedIdentity{Account: account}, Policy: policy, Log: quiet})
	ok := func(http.ResponseWriter, *http.Request) error { return nil }
	describe := Route{"GET", "/clusters/{id}", "DescribeCluster", "Cluster", "id", Customers}
	list := Route{"GET", "/clusters", "ListClusters", "Cluster", "", Customers}
	work := Route{"GET", "/work/{id}", "DescribeWork", "Work", "id", Operators}
	for _, route := range []Route{describe, list, work} {
		rt.Handle(route, ok)
	}
	h := rest.Observe(rest.Options{Log: quiet}, rt)
	for _, c := range []struct {
		method, target string
		route          Route
		id             string
		status         int
	}{
		{"GET", "/clusters/7", describe, "7", 200},
		{"GET", "/clusters/a%2fb", describe, "a/b", 200},
		{"HEAD", "/clusters/7", describe, "7", 200},
		{"GET", "/clusters", list, "", 200},
		{"GET", "/work/7", work, "7", 403}, // the policy allows it; it is for operators
		{"GET", "/nothing", Route{}, "", 404},
		{"POST", "/clusters/7", Route{}, "", 405},
	} {
		if c.route == list { // about the account
			c.id = account
		}
		*policy = recordingPolicy{}
		w := serve(h, httptest.NewRequest(c.method, c.target, nil))
		if w.Code != c.status || policy.action != c.route.Action || policy.audience != c.route.Audience || policy.id != c.id {
			t.Errorf("%s %s: %d, decided on %+v", c.method, c.target, w.Code, *policy)
		}
	}
}

// A request with the parameter of an escalation needs the right to both actions.
func TestAnEscalationIsDecidedOnI10(t *testing.T) {
	remove := Route{"DELETE", "/clusters/{id}", "DeleteCluster", "Cluster", "id", Customers}
	force := Escalation{Parameter: "force", Action: "ForceDeleteCluster", Audience: Operators}
	forced := Route{"DELETE", "/clusters/{id}", "ForceDeleteCluster", "Cluster", "id", Operators}
	for _, c := range []struct {
		target     string
		privileged bool
		decided    Route // last
		status     int
	}{
		{"/clusters/7", false, remove, 200},
		{"/clusters/7?force=false", false, remove, 200},
		{"/clusters/7?force=perhaps", false, remove, 200}, // the handler refuses it
		{"/clusters/7?force=true", false, forced, 403},
		{"/clusters/7?force=1", false, forced, 403},
		{"/clusters/7?force=true", true, forced, 200},
	} {
		policy := &recordingPolicy{}
		rt := NewRouter(Options{
			Identifier: fixedIdentity{Account: account, Privileged: c.privileged}, Policy: policy, Log: quiet,
		})
		rt.Handle(remove, func(http.ResponseWriter, *http.Request) error { return nil }, force)
		w := serve(rest.Observe(rest.Options{Log: quiet}, rt), httptest.NewRequest("DELETE", c.target, nil))
		if w.Code != c.status || policy.action != c.decided.Action || policy.audience != c.decided.Audience || policy.id != "7" {
			t.Errorf("%s, privileged %v: %d, decided on %+v", c.target, c.privileged, w.Code, *policy)
		}
	}
	for _, e := range []Escalation{
		{"", IfTrue, "A", Operators}, {"force", IfTrue, "", Operators}, {"force", IfGiven, "A", 0},
		{"force", IfTrue, "A", Public},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v can be registered", e)
				}
			}()
			NewRouter(Options{Identifier: fixedIdentity{}}).Handle(remove, notFound, e)
		}()
	}
}

// A caller without rights gets 403 everywhere, so that he cannot find out the routes.
func TestTheUnprivilegedAreRefusedEverywhere(t *testing.T) {
	rt := NewRouter(Options{Identifier: fixedIdentity{Account: account}, Log: quiet})
	rt.Handle(Route{"GET", "/live", "DescribeHealth", "Region", "", Public}, notFound)
	rt.Handle(Route{"GET", "/clusters/{id}", "DescribeCluster", "Cluster", "id", Customers}, notFound)
	h := rest.Observe(rest.Options{Log: quiet}, rt)
	for _, target := range []string{"/clusters/7", "/nothing", "/clusters//7", "/x/../clusters/7",
		"/clusters/7/", "/%6cive"} {
		for _, method := range append(methods, "HEAD", "OPTIONS") {
			if w := serve(h, httptest.NewRequest(method, target, nil)); w.Code != http.StatusForbidden {
				t.Errorf("%s %s: %d", method, target, w.Code)
			}
		}
	}
}

// A router whose Identifier proves nothing lets nobody through (I10).
func TestAnEmptyIdentityIsNoneI10(t *testing.T) {
	rt := NewRouter(Options{Identifier: fixedIdentity{}, Policy: &recordingPolicy{}, Log: quiet})
	rt.Handle(Route{"GET", "/clusters", "ListClusters", "Cluster", "", Customers}, notFound)
	w := serve(rest.Observe(rest.Options{Log: quiet}, rt), httptest.NewRequest("GET", "/clusters", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
