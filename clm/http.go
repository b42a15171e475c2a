package clm

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// maxBody bounds the bytes of a request that neither creates nor changes a resource.
const maxBody = 1 << 20

// DefaultWatchesPerCaller is how many watches a caller may have open at the same time if the
// configuration has no other number.
const DefaultWatchesPerCaller = 100

// DefaultMaxResource bounds the bytes of a request that creates or changes a resource, if
// Options has no other bound.
const DefaultMaxResource = 4 << 20

// collection is one set of paths: the flat paths of a kind, the paths of a kind below its
// owner, or the paths of all kinds.
type collection struct {
	s      *Server
	entity *Entity // nil: all kinds
	nested bool
}

// routes registers the REST API: for each kind its paths, once more below its
// owner if it has one, and those of all kinds.
func (s *Server) routes() *rest.Mux {
	m := rest.NewMux()
	m.Handle("GET /api/hyperfleet", s.getMetadata)
	m.Handle("GET "+basePath+"/openapi", s.getOpenAPI)
	m.Handle("GET "+basePath+"/openapi.html", s.getOpenAPIPage)
	m.Handle("POST "+basePath+"/"+resources+"/reconcile", s.reconcileAll)
	m.Handle("PUT "+basePath+"/adapters/{adapter}/members/{member}", s.putMember)
	m.Handle("DELETE "+basePath+"/adapters/{adapter}/members/{member}", s.deleteMember)
	(&collection{s: s}).register(m, basePath+"/"+resources)
	for _, e := range s.registry.entities {
		(&collection{s: s, entity: e}).register(m, basePath+"/"+e.Plural)
		if e.parent != nil {
			(&collection{s: s, entity: e, nested: true}).register(m, basePath+"/"+e.parent.Plural+"/{parent_id}/"+
				e.Plural)
		}
	}
	if s.opts.Extension != nil {
		s.opts.Extension.Routes(m, func(ctx context.Context) map[string]string { return callerOf(ctx).Tenancy })
	}
	return m
}

func (c *collection) register(m *rest.Mux, path string) {
	m.Handle("GET "+path, c.list)
	m.Handle("POST "+path, c.create)
	if !c.nested {
		m.Handle("GET "+path+"/history", c.kindHistory)
	}
	m.Handle("GET "+path+"/{id}", c.get)
	m.Handle("PATCH "+path+"/{id}", c.patch)
	m.Handle("DELETE "+path+"/{id}", c.delete)
	m.Handle("POST "+path+"/{id}/force-delete", c.forceDelete)
	m.Handle("GET "+path+"/{id}/statuses", c.statuses)
	m.Handle("PUT "+path+"/{id}/statuses", c.putStatus)
	m.Handle("GET "+path+"/{id}/history", c.history)
	m.Handle("POST "+path+"/{id}/reconcile", c.reconcile)
}

// handler returns the handler of the REST port:
//
//	request -> Observe -> Compress -> trailing slash -> route -> identity -> rights -> Mux
//
// A request without a route is answered without identification, as in the original.
func (s *Server) handler() http.Handler {
	mux := s.routes()
	mux.PlainMethods = true
	open := map[string]bool{"GET /api/hyperfleet": true, "GET " + basePath + "/openapi": true,
		"GET " + basePath + "/openapi.html": true}
	return rest.Observe(rest.Options{
		Log: s.log, ErrorBody: problem, ErrorType: "application/problem+json", Classify: classify,
		Observed: s.metrics.observe, IDHeaders: []string{"X-Request-Id"}, Trace: s.opts.Tracer.Serve,
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
		if route := mux.Route(r); route != "" && !open[route] {
			caller, err := s.opts.Identify(r)
			if err == nil {
				err = caller.authorize(route)
			}
			if err != nil {
				rest.Fail(w, r, err)
				return
			}
			r = r.WithContext(withCaller(r.Context(), caller, rest.OperationID(r.Context())))
		}
		mux.ServeHTTP(w, r)
	})))
}

func (s *Server) getMetadata(w http.ResponseWriter, _ *http.Request) error {
	m := api.Metadata{ID: "hyperfleet", Kind: "API", Href: "/api/hyperfleet", Version: s.opts.Version}
	if s.opts.BuildTime != "" {
		m.BuildTime = &s.opts.BuildTime
	}
	return rest.WriteJSON(w, http.StatusOK, m)
}

// address returns the resource that a request's path names. On the paths of all kinds it
// looks up the kind.
func (c *collection) address(r *http.Request) (address, error) {
	a := address{entity: c.entity, id: r.PathValue("id")}
	if c.nested {
		a.parent = r.PathValue("parent_id")
	}
	if a.entity != nil {
		return a, nil
	}
	d, err := c.s.store.Find(r.Context(), a.id)
	a.entity = c.s.registry.byKind[string(d.Kind)]
	// A resource of another tenant gets the answer of a missing one, which does not show its kind either.
	if errors.Is(err, store.ErrNotFound) || err == nil && (a.entity == nil || a.admits(r.Context(), d) != nil) {
		return a, rest.Errorf(http.StatusNotFound, codeNotFound, "resource with id='%s' not found", shorten(a.id))
	}
	return a, err
}

// read reads the resource that a request's path names, with spec and status.
func (c *collection) read(r *http.Request) (address, store.Document, error) {
	a, err := c.address(r)
	if err != nil {
		return a, store.Document{}, err
	}
	d, err := c.s.store.Get(r.Context(), a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) {
		return a, d, missing(a.entity, a.id)
	}
	if err != nil {
		return a, d, err
	}
	return a, d, a.admits(r.Context(), d)
}

// readWire reads the resource for an answer with its wire form. An operator may see every
// resource, so that spec and status, which have the tenancy, need not be read.
func (c *collection) readWire(r *http.Request, v view) (address, store.Document, error) {
	if v.statuses || c.entity == nil || callerOf(r.Context()).Tenancy != nil {
		return c.read(r)
	}
	a, err := c.address(r)
	if err != nil {
		return a, store.Document{}, err
	}
	d, err := c.s.store.GetWire(r.Context(), a.entity.storeKind(), a.id)
	if errors.Is(err, store.ErrNotFound) || err == nil && a.parent != "" && d.Scope != a.parent {
		return a, d, missing(a.entity, a.id)
	}
	return a, d, err
}

func (c *collection) get(w http.ResponseWriter, r *http.Request) error {
	view, err := parseView(r)
	if err != nil {
		return err
	}
	_, d, err := c.readWire(r, view)
	if err != nil {
		return err
	}
	wire, err := view.of(d)
	if err != nil {
		return err
	}
	return rest.WriteBody(w, r, http.StatusOK, d.Version, wire)
}

func (c *collection) create(w http.ResponseWriter, r *http.Request) error {
	body, err := rest.ReadBody(r, c.s.opts.MaxResource)
	if err != nil {
		return err
	}
	req := newResource{entity: c.entity, key: r.Header.Get("Idempotency-Key")}
	if req.key != "" {
		req.digest = digestOf(r.URL.Path, body)
	}
	if err := rest.DecodeJSON(body, &req.body); err != nil {
		return err
	}
	if len(req.key) > 255 {
		return rest.Errorf(http.StatusBadRequest, codeBadRequest, "the Idempotency-Key has %d bytes; 255 are possible",
			len(req.key))
	}
	var fields []rest.FieldError
	switch {
	case req.body.Kind == "":
		fields = append(fields, rest.FieldError{Field: "kind", Constraint: "required", Message: "is required"})
	case req.entity == nil:
		if req.entity = c.s.registry.byKind[req.body.Kind]; req.entity == nil {
			return fieldError(http.StatusBadRequest, codeValidation, "kind", "enum", "is unknown: "+shorten(
				req.body.Kind))
		}
	case req.body.Kind != req.entity.Kind:
		fields = append(fields, rest.FieldError{Field: "kind", Constraint: "enum", Value: raw(req.body.Kind),
			Message: "must be '" + req.entity.Kind + "'"})
	}
	if req.entity == nil {
		return fieldErrors(fields)
	}
	if len(req.body.Spec) == 0 || string(req.body.Spec) == "null" {
		fields = append(fields, rest.FieldError{Field: "spec", Constraint: "required", Message: "is required"})
	} else {
		fields = append(fields, c.s.checkSpec(req.entity, req.body.Spec)...)
	}
	fields = append(fields, checkLabels(req.body.Labels)...)
	// A wrong body is 400, also on a path where the kind cannot be created.
	if p := req.entity.parent; p != nil && !c.nested && len(fields) == 0 {
		return rest.Errorf(http.StatusUnprocessableEntity, codeValidation,
			"a %s belongs to a %s; create it at %s/%s/{id}/%s",
			req.entity.Kind, p.Kind, basePath, p.Plural, req.entity.Plural)
	}
	req.parent = r.PathValue("parent_id")
	fields = append(fields, req.entity.checkName(req.body.Name)...)
	fields = append(fields, req.entity.checkReferences(req.body.References)...)
	if err := fieldErrors(fields); err != nil {
		return err
	}
	begun := time.Now().Truncate(time.Microsecond)
	d, err := c.s.createResource(r.Context(), req)
	if err != nil {
		return err
	}
	c.s.metrics.unreconciled(d, begun)
	c.s.expiries.written(req.entity)
	return rest.WriteBody(w, r, http.StatusCreated, d.Version, d.Wire)
}

// patchable lists the fields that a PATCH may have.
var patchable = []string{"spec", "labels", "references"}

func (c *collection) patch(w http.ResponseWriter, r *http.Request) error {
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	var given map[string]json.RawMessage
	if err := rest.ReadJSON(r, c.s.opts.MaxResource, &given); err != nil {
		return err
	}
	contentType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err := checkPatch(given, contentType == mergePatchType); err != nil {
		return err
	}
	a, err := c.address(r)
	if err != nil {
		return err
	}
	begun := time.Now().Truncate(time.Microsecond)
	d, err := c.s.patchResource(r.Context(), a, version, func(have declared) (change, error) {
		if contentType == mergePatchType {
			return c.s.merged(a.entity, have, given)
		}
		return c.s.replaced(a.entity, given)
	})
	if err != nil {
		return err
	}
	c.s.metrics.unreconciled(d, begun)
	c.s.expiries.written(a.entity)
	return rest.WriteBody(w, r, http.StatusOK, d.Version, d.Wire)
}

func (c *collection) delete(w http.ResponseWriter, r *http.Request) error {
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	a, err := c.address(r)
	if err != nil {
		return err
	}
	d, err := c.s.deleteResource(r.Context(), a, version)
	if err != nil {
		return err
	}
	return rest.WriteBody(w, r, http.StatusAccepted, d.Version, d.Wire)
}

func (c *collection) forceDelete(w http.ResponseWriter, r *http.Request) error {
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	var req api.ForceDelete
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	switch n := utf8.RuneCountInString(req.Reason); {
	case n == 0:
		return fieldError(http.StatusBadRequest, codeValidation, "reason", "required", "is required")
	case n > maxReason:
		return fieldError(http.StatusBadRequest, codeValidation, "reason", "max_length",
			"must have at most 1024 characters")
	}
	a, err := c.address(r)
	if err != nil {
		return err
	}
	if err := c.s.forceDelete(r.Context(), a, version, req.Reason); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *collection) putStatus(w http.ResponseWriter, r *http.Request) error {
	if callerOf(r.Context()).Tenancy != nil {
		return rest.Errorf(http.StatusForbidden, codeForbidden, "only the region's own adapters report statuses")
	}
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	var req api.AdapterStatusCreate
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	tie, err := parseTie(r)
	if err != nil {
		return err
	}
	report := status.Report{Adapter: req.Adapter, Generation: req.ObservedGeneration, ObservedAt: req.ObservedTime,
		Data: req.Data, Metadata: req.Metadata}
	for _, k := range req.Conditions {
		report.Conditions = append(report.Conditions, status.Reported{Type: k.Type, Status: status.Value(k.Status),
			Reason: status.TextOf(k.Reason), Message: status.TextOf(k.Message)})
	}
	if err := report.Check(time.Now()); err != nil {
		e, _ := errors.AsType[*status.InvalidError](err)
		return fieldError(http.StatusBadRequest, codeValidation, e.Field, "invalid", e.Message)
	}
	a, err := c.address(r)
	if err != nil {
		return err
	}
	out, err := c.s.applyReport(r.Context(), a, version, report, tie)
	if isMissing(err) && version == 0 {
		out, err = c.s.applyLateReport(r.Context(), a, report, tie)
	}
	if err != nil {
		return err
	}
	if out.verdict == status.Discarded {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return rest.WriteJSON(w, http.StatusCreated, shown(out.report))
}

// equalTimeHeader selects the Tie for a report that has the time of the stored report and
// another content: keep or replace.
const equalTimeHeader = "X-Atoll-Equal-Time"

// parseTie reads equalTimeHeader; its default is KeepStored.
func parseTie(r *http.Request) (status.Tie, error) {
	switch asked := r.Header.Get(equalTimeHeader); asked {
	case "", "keep":
		return status.KeepStored, nil
	case "replace":
		return status.TakeLater, nil
	default:
		return 0, rest.Errorf(http.StatusBadRequest, codeBadRequest, "%s is %q; possible: keep, replace",
			equalTimeHeader, shorten(asked))
	}
}

// ifMatch returns the version that a write requires, or 0.
func ifMatch(r *http.Request) (int64, error) {
	version, any, present, err := rest.ParseIfMatch(r)
	if err == nil && present && !any && version == 0 {
		err = store.ErrStale // no document has version 0
	}
	return version, err
}
