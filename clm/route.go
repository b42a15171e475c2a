package clm

import (
	"context"
	"net/http"
	"strings"

	"atoll.dev/api/audit"
	"atoll.dev/internal/rest"
	"atoll.dev/store/auditfeed"
)

// collection is one set of paths: the flat paths of a kind, the paths of a kind below its
// owner, or the paths of all kinds.
type collection struct {
	s      *Server
	entity *Entity // nil: all kinds
	nested bool
}

// right decides whether a caller may use a route. Its error is the answer: 401 for a missing name, 403 for a
// missing right.
type right func(Caller) error

// mayRead admits every identified caller.
func mayRead(Caller) error { return nil }

// mayWrite admits callers with a name, apart from a Reporter.
func mayWrite(c Caller) error {
	if err := hasName(c); err != nil {
		return err
	}
	if c.Reporter {
		return rest.Errorf(http.StatusForbidden, codeForbidden,
			"the system reports statuses, and changes nothing else")
	}
	return nil
}

// hasName admits callers with a name.
func hasName(c Caller) error {
	switch {
	case c.Name != "":
		return nil
	case c.Nameless != nil:
		return rest.Errorf(http.StatusUnauthorized, codeNoIdentity,
			"unable to resolve the caller's identity: %s; only reading is possible with this token", c.Nameless)
	}
	return rest.Errorf(http.StatusUnauthorized, codeNoIdentity, "the caller has no name; only reading is possible")
}

// withoutTenant narrows a right to callers that are restricted to no tenant: the region's own services and
// operators. The other callers get the refusal with 403.
func withoutTenant(admits right, refusal string) right {
	return func(c Caller) error {
		if err := admits(c); err != nil {
			return err
		}
		if c.Tenancy != nil {
			return rest.Errorf(http.StatusForbidden, codeForbidden, "%s", refusal)
		}
		return nil
	}
}

// Rights of single routes.
var (
	mayReport = withoutTenant(hasName, "only the region's own adapters report statuses")
	mayShare  = withoutTenant(mayWrite, "only the region's own adapters share work")
	// Records of a kind and requests for all resources concern every tenant.
	mayReadAllHistory = withoutTenant(mayRead, "only operators see the history of a kind; ask for that of one resource")
	maySetQuotas      = withoutTenant(mayWrite, "only operators set quotas")
	mayReconcileAll   = withoutTenant(mayWrite, "only operators ask for all resources; ask for one")
)

// routes are the routes of the REST API, each with the right that it demands.
type routes struct {
	mux    *rest.Mux
	rights map[string]right // by pattern; none of them is nil
	public map[string]bool  // patterns of routes whose callers are not identified
}

func newRoutes() *routes {
	return &routes{mux: rest.NewMux(), rights: map[string]right{}, public: map[string]bool{}}
}

// handle registers a handler for callers with a right. It panics without a right: a variable that was forgotten must
// not make a route public.
func (t *routes) handle(pattern string, needed right, h rest.Handler) {
	if needed == nil {
		panic("clm: the route " + pattern + " demands no right; register a public route by handlePublic")
	}
	t.rights[pattern] = needed
	t.mux.Handle(pattern, h)
}

// handlePublic registers a handler for all callers, which are not identified.
func (t *routes) handlePublic(pattern string, h rest.Handler) {
	t.public[pattern] = true
	t.mux.Handle(pattern, h)
}

// admit returns the caller of a request to a route. isPublic is true if the route needs no caller. A pattern without
// a right admits nobody.
func (t *routes) admit(pattern string, r *http.Request, identify Identifier) (c Caller, isPublic bool, err error) {
	if t.public[pattern] {
		return c, true, nil
	}
	needed, registered := t.rights[pattern]
	if !registered {
		return c, false, rest.Errorf(http.StatusForbidden, codeForbidden, "the route demands no right, so nobody may use it")
	}
	if c, err = identify(r); err != nil {
		return c, false, err
	}
	return c, false, needed(c)
}

// routes registers the REST API: for each kind its paths, once more below its
// owner if it has one, and those of all kinds.
func (s *Server) routes() *routes {
	t := newRoutes()
	if s.opts.Extension != nil {
		s.opts.Extension.Routes(t.mux, func(ctx context.Context) map[string]string { return callerOf(ctx).Tenancy })
		for _, pattern := range t.mux.Routes() {
			if t.rights[pattern] = mayWrite; strings.HasPrefix(pattern, http.MethodGet+" ") {
				t.rights[pattern] = mayRead
			}
		}
	}
	t.handlePublic("GET /api/hyperfleet", s.getMetadata)
	t.handlePublic("GET "+basePath+"/openapi", s.getOpenAPI)
	t.handlePublic("GET "+basePath+"/openapi.html", s.getOpenAPIPage)
	t.handle("POST "+basePath+"/"+resources+"/reconcile", mayReconcileAll, s.reconcileAll)
	t.handle("PUT "+basePath+"/adapters/{adapter}/members/{member}", mayShare, s.putMember)
	t.handle("DELETE "+basePath+"/adapters/{adapter}/members/{member}", mayShare, s.deleteMember)
	t.handle("GET "+basePath+audit.Path, mayReadAudit, auditfeed.Handler(s.store))
	t.handle("GET "+basePath+"/accounts/{account}/quotas", mayRead, s.getQuotas)
	t.handle("PATCH "+basePath+"/accounts/{account}/quotas", maySetQuotas, s.patchQuotas)
	(&collection{s: s}).register(t, basePath+"/"+resources)
	for _, e := range s.registry.entities {
		(&collection{s: s, entity: e}).register(t, basePath+"/"+e.Plural)
		if e.parent != nil {
			(&collection{s: s, entity: e, nested: true}).register(t, basePath+"/"+e.parent.Plural+"/{parent_id}/"+
				e.Plural)
		}
	}
	return t
}

// register registers the routes of the collection.
func (c *collection) register(t *routes, path string) {
	t.handle("GET "+path, mayRead, c.list)
	t.handle("POST "+path, mayWrite, c.create)
	if !c.nested {
		t.handle("GET "+path+"/history", mayReadAllHistory, c.kindHistory)
	}
	t.handle("GET "+path+"/{id}", mayRead, c.get)
	t.handle("PATCH "+path+"/{id}", mayWrite, c.patch)
	t.handle("DELETE "+path+"/{id}", mayWrite, c.delete)
	t.handle("POST "+path+"/{id}/force-delete", mayWrite, c.forceDelete)
	t.handle("GET "+path+"/{id}/statuses", mayRead, c.statuses)
	t.handle("PUT "+path+"/{id}/statuses", mayReport, c.putStatus)
	t.handle("GET "+path+"/{id}/history", mayRead, c.history)
	t.handle("POST "+path+"/{id}/reconcile", mayWrite, c.reconcile)
}

// handler returns the handler of the REST port:
//
//	request -> Observe -> Compress -> trailing slash -> route -> identity -> right -> Mux
//
// A request without a route is answered without identification, as in the original.
func (s *Server) handler() http.Handler {
	table := s.routes()
	table.mux.PlainMethods = true
	return rest.Observe(rest.Options{
		Log: s.log, ErrorBody: problem, ErrorType: "application/problem+json", Classify: classify,
		Observed: s.metrics.observe, IDHeaders: []string{"X-Request-Id"}, Trace: s.opts.Tracer.StartRequest,
	}, rest.Compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Authorization")
		if p := r.URL.Path; len(p) > 1 && strings.HasSuffix(p, "/") {
			u := *r.URL
			u.Path, u.RawPath = strings.TrimRight(p, "/"), ""
			r2 := *r
			r2.URL = &u
			r = &r2
		}
		r = r.WithContext(withInstance(r.Context(), r.URL.Path))
		if pattern := table.mux.Route(r); pattern != "" {
			caller, isPublic, err := table.admit(pattern, r, s.opts.Identify)
			if err != nil {
				rest.Fail(w, r, err)
				return
			}
			if !isPublic {
				r = r.WithContext(withCaller(r.Context(), caller, rest.OperationID(r.Context()),
					auditedRequest(r, pattern, caller)))
			}
		}
		table.mux.ServeHTTP(w, r)
	})))
}
