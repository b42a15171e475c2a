package clm

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"time"
	"unicode/utf8"

	api "atoll.dev/api/clm"
	"atoll.dev/clm/status"
	"atoll.dev/cluster"
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
	if req.body, err = decodeBody[api.ResourceCreate](body); err != nil {
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
	c.s.expiries.wakeAfterWrite(req.entity)
	return rest.WriteBody(w, r, http.StatusCreated, d.Version, d.Wire)
}

// patchable lists the fields that a PATCH may have.
var patchable = []string{"spec", "labels", "references"}

func (c *collection) patch(w http.ResponseWriter, r *http.Request) error {
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	given, err := readBody[map[string]json.RawMessage](r, c.s.opts.MaxResource)
	if err != nil {
		return err
	}
	contentType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err := checkPatch(given, contentType); err != nil {
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
	c.s.expiries.wakeAfterWrite(a.entity)
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
	version, err := ifMatch(r)
	if err != nil {
		return err
	}
	req, err := readBody[api.AdapterStatusCreate](r, maxBody)
	if err != nil {
		return err
	}
	tie, err := parseTie(r)
	if err != nil {
		return err
	}
	report := status.Report{Adapter: cluster.Adapter(req.Adapter), Generation: req.ObservedGeneration,
		ObservedAt: req.ObservedTime, Data: req.Data, Metadata: req.Metadata}
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
	return rest.WriteJSON(w, http.StatusCreated, append(withoutInternals(out.report).Append(nil), '\n'))
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
