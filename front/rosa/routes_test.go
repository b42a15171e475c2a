package rosa

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/api/platform"
	"atoll.dev/internal/quick"
	"atoll.dev/internal/rest"
)

var quiet = slog.New(slog.DiscardHandler)

// openAPIDocument loads the OpenAPI document.
func openAPIDocument(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(platform.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestDocumentAndRoutesAreTheSame(t *testing.T) {
	doc := openAPIDocument(t)
	var documented []string
	for _, server := range doc.Servers {
		for path, item := range doc.Paths.Map() {
			for method := range item.Operations() {
				documented = append(documented, method+" "+strings.TrimSuffix(server.URL, "/")+path)
			}
		}
	}
	slices.Sort(documented)
	var served []string
	for _, r := range routesOf() {
		served = append(served, r.Method+" "+r.Path)
	}
	for _, r := range served {
		if !slices.Contains(documented, r) {
			t.Errorf("%s is served, but not in the document", r)
		}
	}
	for _, d := range documented {
		if !slices.Contains(served, d) {
			t.Errorf("%s is in the document, but not served", d)
		}
	}
}

// TestEveryRouteHasAnActionOfItsKindI10 walks the table of routes: its action
// names a verb and the resource, and its parameter stands in its path.
func TestEveryRouteHasAnActionOfItsKindI10(t *testing.T) {
	form := regexp.MustCompile(`^(Create|Register|Describe|List|Update|Delete|Check)([A-Z][A-Za-z]+)$`)
	verbs := map[string][]string{
		"GET": {"Describe", "List"}, "POST": {"Create", "Register", "Check"}, "PUT": {"Update"}, "PATCH": {"Update"},
		"DELETE": {"Delete"},
	}
	public := 0
	for _, r := range routesOf() {
		name := r.Method + " " + r.Path
		action := form.FindStringSubmatch(string(r.Action))
		if action == nil || !slices.Contains(verbs[r.Method], action[1]) {
			t.Errorf("%s has the action %q", name, r.Action)
		}
		if r.ID != "" && !strings.Contains(r.Path, "{"+r.ID+"}") {
			t.Errorf("%s has no parameter %s", name, r.ID)
		}
		if r.ID == "" && strings.Contains(r.Path, "{") {
			t.Errorf("%s has a parameter, and its route names no resource", name)
		}
		want, known := audiences[r.Kind]
		if want == 0 {
			want = regionAudiences[r.Action]
		}
		if !known || r.Audience != want {
			t.Errorf("%s, about a %s, is for audience %d, want %d", name, r.Kind, r.Audience, want)
		}
		if r.Audience == access.Public {
			public++
		}
	}
	if public != 4 {
		t.Errorf("%d routes are public, want live and ready below two stages", public)
	}
}

// audiences says for whom the routes about each kind of resource are; 0: see
// regionAudiences.
var audiences = map[access.ResourceKind]access.Audience{
	kindRegion: 0, kindCluster: access.Customers, kindNodePool: access.Customers, kindCredential: access.Customers,
	kindPolicy: access.Customers, kindGroup: access.Customers, kindAttachment: access.Customers,
	kindAdmin: access.Customers, kindLink: access.Customers, kindLinkCode: access.Customers,
	kindAccount:           0,
	kindManagementCluster: access.Operators, kindWork: access.Operators, kindResourceBundle: access.Operators,
}

// regionAudiences says for whom the routes about the API itself are.
var regionAudiences = map[access.Action]access.Audience{
	"DescribeHealth": access.Public, "DescribeAPI": access.Customers, access.ActionDescribeCaller: access.Customers,
	"CreateAccount": access.Operators, "ListAccounts": access.Operators, "DescribeAccount": access.Operators,
	"DeleteAccount": access.Operators, "CheckAuthorization": access.Customers, "ListAudit": access.Customers,
	access.ActionCreateLink: access.Customers,
	"ListQuotas":            access.Customers, "DescribeAccountQuotas": access.Operators,
	"UpdateAccountQuotas": access.Operators,
}

// Every action of a route, and of an escalation, is in the schema of policies, about the kind of
// resource that the decision gets; and the schema has no other action.
func TestEveryActionIsInTheSchemaI10(t *testing.T) {
	// changeCluster and createAccount decide about these.
	served := map[string]bool{"TagCluster": true, "CreatePrivilegedAccount": true}
	check := func(route access.Route) {
		a, known := policy.Lookup(string(route.Action))
		if !known {
			t.Errorf("%s %s: the schema has no action %s", route.Method, route.Path, route.Action)
			return
		}
		served[a.Name] = true
		of := access.ResourceOf(route, "x", "123456789012")
		isCollection := a.On == policy.Account || a.On == policy.Region
		if of.Kind != a.On || !isCollection && route.ID == "" && a.Name != "CreateCluster" && a.Name != "CreateNodePool" {
			t.Errorf("%s %s: the decision is about a %s, the schema's action %s about a %s", route.Method, route.Path,
				of.Kind, a.Name, a.On)
		}
		if a.IsForOperators() != (route.Audience == access.Operators) {
			t.Errorf("%s is for audience %d and in the groups %v", a.Name, route.Audience, a.Groups)
		}
	}
	for _, route := range routesOf() {
		if route.Audience == access.Public {
			continue
		}
		check(route)
		for _, e := range append(escalations[route.Action], administer) {
			route.Action, route.Audience = e.Action, e.Audience
			check(route)
		}
	}
	for _, a := range policy.Actions() {
		if !served[a.Name] {
			t.Errorf("no route has the action %s of the schema", a.Name)
		}
	}
}

// customerIdentity identifies every sender as a customer without privileges.
type customerIdentity struct{}

func (customerIdentity) Identify(*http.Request) (access.Identity, []byte, error) {
	return access.Identity{Principal: "arn:aws:iam::210987654321:user/customer", Account: "210987654321"}, nil, nil
}

// allowAll is a policy that allows everything, so that the audience alone decides.
type allowAll struct{}

func (allowAll) Decide(context.Context, access.Question) (access.Grant, error) {
	return access.Grant{}, nil
}

// TestOperatorRoutesRefuseCustomersI10 calls each route of the table as a customer whom
// the policy allows everything: routes for operators, and escalations for operators,
// answer 403 by the route alone, and no other does.
func TestOperatorRoutesRefuseCustomersI10(t *testing.T) {
	h := New(Options{
		Maestro: unreachable(t), Identifier: customerIdentity{}, Policy: allowAll{}, Ops: rest.NewOps(), Log: quiet,
	})
	refused := func(w *httptest.ResponseRecorder) bool {
		return w.Code == http.StatusForbidden && codeIn(t, w) == string(access.NotPrivileged)
	}
	for _, r := range routesOf() {
		path := strings.NewReplacer("{id}", "a", "{cid}", "b", "{arn}", "c").Replace(r.Path)
		w := call(t, h, r.Method, path, "{}")
		if refused(w) != (r.Audience == access.Operators) {
			t.Errorf("%s %s, for audience %d, answers a customer %d %s", r.Method, path, r.Audience, w.Code, w.Body)
		}
		for _, e := range escalations[r.Action] {
			w := call(t, h, r.Method, path+"?reason=test&"+e.Parameter+"=true", "{}")
			if refused(w) != (e.Audience == access.Operators) {
				t.Errorf("%s %s with %s=true answers a customer %d %s", r.Method, path, e.Parameter, w.Code, w.Body)
			}
		}
	}
	for action := range escalations {
		if !slices.ContainsFunc(routesOf(), func(r access.Route) bool { return r.Action == action }) {
			t.Errorf("the escalated action %s has no route", action)
		}
	}
}

// A listener of customers has no route for operators: it answers an operator there as it answers him
// about a path that no route has, and has all other routes. A parameter that makes a request an action
// of operators is refused, too.
func TestTheListenerOfCustomersHasNoOperatorRoutesI10(t *testing.T) {
	quick.LeavesOut(t, "waits for services that do not answer")
	whole := New(Options{
		Maestro: unreachable(t), Identifier: operatorIdentity{}, Policy: allowAll{}, Ops: rest.NewOps(), Log: quiet,
	})
	customers := access.WithoutOperators(whole)
	isMissing := func(h http.Handler, method, path string) bool {
		w := call(t, h, method, path, "{}")
		return w.Code == http.StatusNotFound && codeIn(t, w) == "not-found"
	}
	operators := 0
	for _, r := range routesOf() {
		path := strings.NewReplacer("{id}", "a", "{cid}", "b", "{arn}", "c").Replace(r.Path)
		if isMissing(whole, r.Method, path) {
			t.Errorf("%s %s is missing on the listener of operators", r.Method, path)
		}
		if got := isMissing(customers, r.Method, path); got != (r.Audience == access.Operators) {
			t.Errorf("%s %s, for audience %d, is missing on the listener of customers: %t", r.Method, path, r.Audience, got)
		}
		if r.Audience == access.Operators {
			operators++
			for _, method := range []string{"OPTIONS", "PATCH", "POST", "PUT"} { // 405 would show the route
				if !isMissing(customers, method, path) {
					t.Errorf("%s %s shows the route", method, path)
				}
			}
		}
		escalated := escalations[r.Action]
		if isAdministered(r.Path) {
			escalated = append(escalated, administer)
		}
		for _, e := range escalated {
			path := path + "?reason=test&" + e.Parameter + "=true"
			if isMissing(whole, r.Method, path) || !isMissing(customers, r.Method, path) {
				t.Errorf("%s %s: the listener of customers takes an operator's parameter", r.Method, path)
			}
		}
	}
	if operators < 20 {
		t.Errorf("only %d routes for operators", operators)
	}
}

// operatorIdentity identifies every sender as the operator.
type operatorIdentity struct{}

func (operatorIdentity) Identify(*http.Request) (access.Identity, []byte, error) {
	return access.Identity{
		Principal: "arn:aws:iam::123456789012:user/op", Account: "123456789012", Privileged: true,
	}, nil, nil
}

// noIdentity identifies nobody, as a wrongly wired Identifier may.
type noIdentity struct{}

func (noIdentity) Identify(*http.Request) (access.Identity, []byte, error) {
	return access.Identity{}, nil, nil
}

// accountId names the account of a request only below /authz/, where the Router decides about
// AdministerAccount, too. Elsewhere the account would evade a forbid on the caller's own.
func TestAccountIDNamesTheAccountBelowAuthzOnlyI10(t *testing.T) {
	f, caller := newFront(nil, rest.NewOps()), access.Identity{Account: "111111111111"}
	for _, route := range routesOf() {
		identify := func(query string) policy.Resource {
			r := httptest.NewRequest(route.Method, "/?"+query, strings.NewReader(`{"cluster_id":"c"}`))
			for _, name := range []string{"id", "cid", "arn"} {
				r.SetPathValue(name, "x")
			}
			return f.Identify(r, caller, route)
		}
		without, with := identify(""), identify("accountId=222222222222")
		if !strings.HasPrefix(route.Path, "/api/v0/authz/") && !strings.HasPrefix(route.Path, "/prod/api/v0/authz/") {
			if !reflect.DeepEqual(with, without) {
				t.Errorf("%s %s: %+v with accountId, %+v without", route.Method, route.Path, with, without)
			}
		} else if with.Account != "222222222222" || without.Account != "111111111111" {
			t.Errorf("%s %s: %+v with accountId, %+v without", route.Method, route.Path, with, without)
		}
	}
}

// routesOf returns the routes of the front.
func routesOf() []access.Route {
	router := access.NewRouter(access.Options{Identifier: noIdentity{}, Log: quiet})
	newFront(nil, rest.NewOps()).register(router)
	return router.Routes()
}

func call(t *testing.T, h http.Handler, method, target, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))
	return w
}

func codeIn(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var e platform.Error
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Kind != platform.ErrorKindError || e.Reason == "" {
		t.Errorf("%d %s is not an error of the contract", w.Code, w.Body)
	}
	return e.Code
}

// Every route but live and ready refuses a request without identity, also when the
// Identifier is wired wrongly.
func TestNoRouteRunsWithoutIdentityI10(t *testing.T) {
	for name, identifier := range map[string]access.Identifier{
		"access": &access.Verifier{Region: "local", Keys: noKeys{}}, "wrongly wired": noIdentity{},
	} {
		h := New(Options{Maestro: unreachable(t), Identifier: identifier, Ops: rest.NewOps(), Log: quiet})
		for _, r := range routesOf() {
			method, route := r.Method, r.Path
			path := strings.NewReplacer("{id}", "a", "{cid}", "b", "{arn}", "c").Replace(r.Path)
			public := strings.HasSuffix(path, "/live") || strings.HasSuffix(path, "/ready")
			for _, target := range []string{path, path + "?watch=true", path + "?size=1"} {
				w := call(t, h, method, target, contractWork)
				switch {
				case public && w.Code == http.StatusForbidden:
					t.Errorf("%s: %s needs an identity", name, route)
				case !public && (w.Code != http.StatusForbidden || codeIn(t, w) == ""):
					t.Errorf("%s: %s %s answers %d %s without identity", name, method, target, w.Code, w.Body)
				}
			}
		}
		if w := call(t, h, "GET", "/prod/api/v0/live/", ""); w.Code == http.StatusOK {
			t.Errorf("%s: a path beside a public one answers %d", name, w.Code)
		}
	}
}

type noKeys struct{}

func (noKeys) Lookup(string) (access.Key, bool, error) { return access.Key{}, false, nil }

func TestTheDocumentIsServedAsYAMLOrJSON(t *testing.T) {
	server := httptest.NewServer(New(Options{Maestro: unreachable(t), Identifier: operatorIdentity{}, Ops: rest.NewOps(),
		Log: quiet}))
	defer server.Close()
	for accept, want := range map[string]string{
		"": "application/yaml", "*/*": "application/yaml", "application/yaml": "application/yaml",
		"application/json": "application/json", "application/yaml, application/json;q=0.1": "application/yaml",
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/prod/api/v0/openapi", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		resp, err := server.Client().Do(r) // asks for gzip, and undoes it
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Type"); got != want || !resp.Uncompressed {
			t.Errorf("Accept %q: %q, compressed %v", accept, got, resp.Uncompressed)
		}
		if _, err := openapi3.NewLoader().LoadFromData(body); err != nil {
			t.Errorf("Accept %q: %v", accept, err)
		}
		if resp.Header.Get("X-Amz-Apigw-Id") == "" || resp.Header.Get("X-Amzn-Requestid") == "" {
			t.Errorf("the answer has no request id: %v", resp.Header)
		}
	}
}
