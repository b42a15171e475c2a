package clm

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Each route demands a right, and only the documents of the API are public. A caller without a name changes nothing,
// a Reporter does nothing but report, and a tenant uses no route that concerns all tenants (I10).
func TestI10EachRouteRequiresARight(t *testing.T) {
	registry, err := ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	table := (&Server{registry: registry}).routes()
	r := httptest.NewRequest("GET", "/", nil)
	as := func(c Caller, route string) (isPublic bool, err error) {
		_, isPublic, err = table.admit(route, r, func(*http.Request) (Caller, error) { return c, nil })
		return isPublic, err
	}
	tenant := Caller{Name: "ana", Tenancy: map[string]string{"org": "1"}}
	var public, ofAllTenants []string
	for _, route := range table.mux.Routes() {
		reads, reports := strings.HasPrefix(route, "GET "), strings.HasSuffix(route, "/{id}/statuses")
		if route == "GET "+basePath+"/audit" {
			continue // TestI10OnlyThePlatformAPIReadsAuditRecords
		}
		isPublic, err := as(Caller{Name: "olga"}, route)
		if err != nil {
			t.Errorf("%s refuses a caller with a name: %v", route, err)
		}
		if isPublic {
			public = append(public, route)
		}
		if _, err := as(Caller{}, route); (err == nil) != reads {
			t.Errorf("%s for a caller without a name: %v", route, err)
		}
		if _, err := as(Caller{Name: "x", Reporter: true}, route); (err == nil) != (reads || reports) {
			t.Errorf("%s for a Reporter: %v", route, err)
		}
		if _, err := as(tenant, route); err != nil {
			ofAllTenants = append(ofAllTenants, strings.Replace(route, basePath, "", 1))
		}
	}
	if want := []string{"GET /api/hyperfleet", "GET " + basePath + "/openapi", "GET " + basePath +
		"/openapi.html"}; !slices.Equal(public, want) {
		t.Errorf("public routes: %v, want %v", public, want)
	}
	for _, route := range []string{"PATCH /accounts/{account}/quotas",
		"GET /clusters/history", "GET /resources/history", "POST /resources/reconcile",
		"PUT /adapters/{adapter}/members/{member}", "DELETE /adapters/{adapter}/members/{member}",
		"PUT /clusters/{id}/statuses", "PUT /clusters/{parent_id}/nodepools/{id}/statuses"} {
		if !slices.Contains(ofAllTenants, route) {
			t.Errorf("a tenant may use %s", route)
		}
	}
	if slices.Contains(ofAllTenants, "DELETE /clusters/{id}") {
		t.Error("a tenant may not delete its clusters")
	}
	if _, err := as(Caller{Name: "olga"}, "GET /unregistered"); err == nil {
		t.Error("a route without a right admits a caller")
	}
}

// Audit records are of all tenants and have what callers say about theirs: only the Platform API reads them (I10).
func TestI10OnlyThePlatformAPIReadsAuditRecords(t *testing.T) {
	registry, err := ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	table := (&Server{registry: registry}).routes()
	for name, c := range map[string]Caller{
		"":                                {Name: "system:platform", Service: true, System: true},
		"an adapter":                      {Name: "system:adapter", Service: true, System: true},
		"a principal of the Platform API": {Name: "system:platform", System: true},
		"a person":                        {Name: "olga"}, "a tenant": {Name: "ana", Tenancy: map[string]string{"org": "1"}},
	} {
		_, _, err := table.admit("GET "+basePath+"/audit", httptest.NewRequest("GET", "/", nil),
			func(*http.Request) (Caller, error) { return c, nil })
		if (err == nil) != (name == "") {
			t.Errorf("%s reads audit records: %v", name, err)
		}
	}
}

// Routes of an extension demand the right to read or to write, by their method.
func TestI10ExtensionRoutesRequireARight(t *testing.T) {
	registry, err := ParseRegistry([]byte(testEntities))
	if err != nil {
		t.Fatal(err)
	}
	table := (&Server{registry: registry, opts: Options{Extension: extraRoutes{}}}).routes()
	for route, want := range map[string]error{"GET /extra": nil, "POST /extra": mayWrite(Caller{})} {
		_, isPublic, err := table.admit(route, httptest.NewRequest("GET", "/", nil), func(*http.Request) (Caller, error) {
			return Caller{}, nil
		})
		if isPublic || (err == nil) != (want == nil) {
			t.Errorf("%s for a caller without a name: %v, want %v", route, err, want)
		}
	}
}

// extraRoutes is an extension with two routes.
type extraRoutes struct{}

func (extraRoutes) Routes(m *rest.Mux, _ func(context.Context) map[string]string) {
	for _, pattern := range []string{"GET /extra", "POST /extra"} {
		m.Handle(pattern, func(http.ResponseWriter, *http.Request) error { return nil })
	}
}

func (extraRoutes) OpenAPI() []byte { return nil }

func (extraRoutes) RefuseDeletion(context.Context, *store.Tx, store.Document) error { return nil }

// A right that was forgotten must not make a route public.
func TestI10ARouteWithoutARightIsNotRegistered(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a route without a right was registered")
		}
	}()
	var forgotten right
	newRoutes().handle("GET /forgotten", forgotten, func(http.ResponseWriter, *http.Request) error { return nil })
}
