package maestro

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	api "atoll.dev/api/maestro"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/bundle"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// maxBody is the largest body of a REST request in bytes: consumers are small.
const maxBody = 1 << 20

// routes registers the REST API.
func (s *Server) routes() *rest.Mux {
	m := rest.NewMux()
	m.Handle("GET /api/maestro", s.getAPI)
	m.Handle("GET /api/maestro/v1", s.getAPIVersion)
	m.Handle("GET /api/maestro/v1/openapi", s.getOpenAPI)
	m.Handle("GET /api/maestro/v1/errors", s.listErrors)
	m.Handle("GET /api/maestro/v1/errors/{id}", s.getError)
	m.Handle("GET /api/maestro/v1/consumers", s.listConsumers)
	m.Handle("POST /api/maestro/v1/consumers", s.postConsumer)
	m.Handle("GET /api/maestro/v1/consumers/{id}", s.getConsumer)
	m.Handle("PATCH /api/maestro/v1/consumers/{id}", s.patchConsumerHTTP)
	m.Handle("DELETE /api/maestro/v1/consumers/{id}", s.deleteConsumerHTTP)
	m.Handle("GET /api/maestro/v1/resource-bundles", s.listBundles)
	m.Handle("GET /api/maestro/v1/resource-bundles/{id}", s.getBundle)
	m.Handle("DELETE /api/maestro/v1/resource-bundles/{id}", s.deleteBundleHTTP)
	m.Handle("GET /api/maestro/v1/unknown-works", s.listUnknown)
	m.Handle("POST /api/maestro/v1/unknown-works/{consumer}/{id}/adopt", s.adoptUnknown)
	m.Handle("DELETE /api/maestro/v1/unknown-works/{consumer}/{id}", s.deleteUnknown)
	m.Handle("/", noRoute)
	return m
}

// handler returns the handler of the REST port:
//
//	request -> Observe -> gzip -> CORS -> identity -> trailing slash -> Mux
func (s *Server) handler() http.Handler {
	mux := s.routes()
	return rest.Observe(rest.Options{
		Log: s.log, ErrorBody: apierror.Body, Classify: apierror.Classify, Metrics: s.opts.Metrics,
	}, rest.Compress(addVary(rest.CORS(s.opts.CORSOrigins,
		s.identify(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p := r.URL.Path; len(p) > 1 && strings.HasSuffix(p, "/") {
				u := *r.URL
				u.Path, u.RawPath = strings.TrimRight(p, "/"), ""
				r2 := *r
				r2.URL = &u
				r = &r2
			}
			mux.ServeHTTP(w, r)
		}))))))
}

// addVary sets the header Vary: to Authorization, as the original Maestro does, and
// to the header by which clients ask for extensions.
func addVary(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Authorization")
		w.Header().Add("Vary", api.ExtensionsHeader)
		next.ServeHTTP(w, r)
	})
}

// wantsExtensions reports whether the client asks for members that answers of the
// original Maestro do not have (docs/decisions/039).
func wantsExtensions(r *http.Request) bool {
	yes, err := strconv.ParseBool(r.Header.Get(api.ExtensionsHeader))
	return err == nil && yes
}

// identify authenticates the caller by its certificate, and refuses unknown callers (I10).
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, perr := pki.PeerName(r.TLS)
		if perr != nil {
			peer = ""
		}
		if r.TLS != nil {
			if err := s.admit(peer); err != nil {
				rest.Fail(w, r, err)
				return
			}
		}
		ctx := withCaller(r.Context(), peer, r.Header.Get, rest.OperationID(r.Context()))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func noRoute(_ http.ResponseWriter, r *http.Request) error {
	path := r.URL.Path
	if len(path) > 200 {
		path = strings.ToValidUTF8(path[:200], "") + "..."
	}
	return rest.Errorf(http.StatusNotFound, apierror.CodeNoRoute, "The requested resource '%s' doesn't exist", path)
}

func (s *Server) getAPI(w http.ResponseWriter, _ *http.Request) error {
	return rest.WriteJSON(w, http.StatusOK, json.RawMessage(
		`{"id":"maestro","href":"/api/maestro","kind":"API","versions":[{"id":"v1","href":"/api/maestro/v1","kind":"","collections":null}]}`,
	))
}

func (s *Server) getAPIVersion(w http.ResponseWriter, _ *http.Request) error {
	// The original Maestro and its clients use this old name of the collection.
	return rest.WriteJSON(w, http.StatusOK, json.RawMessage(
		`{"id":"v1","href":"/api/maestro/v1","kind":"APIVersion","collections":[{"id":"resources","href":"/api/maestro/v1/resources","kind":"ResourceList"}]}`,
	))
}

// openAPIJSON is the OpenAPI document as JSON.
var openAPIJSON = func() []byte {
	doc, err := yaml.YAMLToJSON(api.OpenAPI)
	if err != nil {
		panic("maestro: the OpenAPI document: " + err.Error())
	}
	return doc
}()

func (s *Server) getOpenAPI(w http.ResponseWriter, r *http.Request) error {
	if strings.Contains(r.Header.Get("Accept"), "yaml") {
		w.Header().Set("Content-Type", "application/yaml")
		_, err := w.Write(api.OpenAPI)
		return err
	}
	return rest.WriteJSON(w, http.StatusOK, openAPIJSON)
}

func (s *Server) listErrors(w http.ResponseWriter, _ *http.Request) error {
	list := api.ErrorList{
		Kind:  "ErrorList",
		Page:  1,
		Size:  len(apierror.Catalogue),
		Total: int64(len(apierror.Catalogue)),
	}
	for _, e := range apierror.Catalogue {
		list.Items = append(list.Items, apierror.Document(e.Code, e.Reason, ""))
	}
	return rest.WriteJSON(w, http.StatusOK, list)
}

func (s *Server) getError(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	for _, e := range apierror.Catalogue {
		if strings.TrimPrefix(e.Code, "maestro-") == id {
			return rest.WriteJSON(w, http.StatusOK, apierror.Document(e.Code, e.Reason, ""))
		}
	}
	return apierror.NotFound("Error", id)
}

func (s *Server) postConsumer(w http.ResponseWriter, r *http.Request) error {
	var req api.ConsumerCreate
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	d, err := s.createConsumer(r.Context(), req)
	if err != nil {
		return err
	}
	return rest.WriteVersioned(w, r, http.StatusCreated, d.Version, d.Wire)
}

func (s *Server) getConsumer(w http.ResponseWriter, r *http.Request) error {
	d, err := s.find(r, bundle.ConsumerKind, "Consumer")
	if err != nil {
		return err
	}
	return s.writeConsumer(w, r, d)
}

func (s *Server) patchConsumerHTTP(w http.ResponseWriter, r *http.Request) error {
	version, err := s.ifMatch(r, bundle.ConsumerKind, "Consumer")
	if err != nil {
		return err
	}
	var req api.ConsumerPatch
	if err := rest.ReadJSON(r, maxBody, &req); err != nil {
		return err
	}
	d, err := s.patchConsumer(r.Context(), r.PathValue("id"), version, req)
	if err != nil {
		return err
	}
	return s.writeConsumer(w, r, d)
}

func (s *Server) writeConsumer(w http.ResponseWriter, r *http.Request, d store.Document) error {
	docs, err := s.consumerItems(r, []store.Document{d})
	if err != nil {
		return err
	}
	// Not WriteVersioned: observed members change without a new version, and an
	// answer of 304 would hide the change from the client.
	w.Header().Set("Etag", rest.ETag(d.Version))
	return rest.WriteJSON(w, http.StatusOK, docs[0])
}

func (s *Server) deleteConsumerHTTP(w http.ResponseWriter, r *http.Request) error {
	version, err := s.ifMatch(r, bundle.ConsumerKind, "Consumer")
	if err != nil {
		return err
	}
	if err := s.deleteConsumer(r.Context(), r.PathValue("id"), version); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) getBundle(w http.ResponseWriter, r *http.Request) error {
	fields, err := rest.ParseFields(r)
	if err != nil {
		return err
	}
	d, err := s.find(r, bundle.Kind, "ResourceBundle")
	if err != nil {
		return err
	}
	doc := json.RawMessage(d.Wire)
	if wantsExtensions(r) {
		dl, err := s.ledger.DeliveryOf(r.Context(), d.ID)
		if err != nil {
			return err
		}
		if doc, err = withDelivery(d.Wire, dl); err != nil {
			return err
		}
	}
	if doc, err = fields.Select(doc); err != nil {
		return err
	}
	w.Header().Set("Etag", rest.ETag(d.Version))
	return rest.WriteJSON(w, http.StatusOK, doc)
}

// withDelivery adds the member "delivery" to a rendered bundle.
func withDelivery(wire []byte, dl *api.Delivery) (json.RawMessage, error) {
	member, err := json.Marshal(dl)
	if err != nil {
		return nil, err
	}
	doc := make([]byte, 0, len(wire)+len(member)+16)
	doc = append(doc, wire[:len(wire)-1]...) // up to the closing brace
	doc = append(doc, `,"delivery":`...)
	doc = append(doc, member...)
	return append(doc, '}'), nil
}
