// Package restapi is the REST API of Maestro: its routes, lists, searches and watches.
//
// It reads the store and the ledger, and changes consumers and bundles by package records. Answers have the form of
// openshift-online/maestro; clients that ask for extensions get further members (docs/decisions/039).
//
// Only package maestro and its packages import it.
package restapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/api/audit"
	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/apierror"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/records"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// Options are the parameters of Handler. All are needed, except CORSOrigins and Metrics.
type Options struct {
	Store   *store.Store
	Ledger  *ledger.Ledger
	Feed    *store.Broadcast
	Records *records.Writer
	Watches *rest.WatchLimits

	// AskSpecs asks an agent for the content of works that it holds. It does not wait for the answer.
	AskSpecs func(ctx context.Context, consumer work.Consumer, ids []work.ID)
	Life     func() string          // returns the database's life
	MayCall  func(peer string) bool // reports whether an identity may call

	CORSOrigins []string              // origins whose pages may call; "*" is any
	Metrics     prometheus.Registerer // of requests; nil: none
	Watchers    prometheus.Gauge      // the number of open watches
	Logger      *slog.Logger
}

// handlers has the handlers of the routes.
type handlers struct{ Options }

// maxBody is the largest body of a REST request in bytes: consumers are small.
const maxBody = 1 << 20

// Handler returns the handler of the REST port:
//
//	request -> Observe -> gzip -> CORS -> identity -> trailing slash -> Mux
func Handler(o Options) http.Handler {
	h := &handlers{o}
	mux := h.routes()
	return rest.Observe(rest.Options{
		Log: h.Logger, ErrorBody: apierror.Body, Classify: apierror.Classify, Metrics: h.Metrics,
	}, rest.Compress(addVary(rest.CORS(h.CORSOrigins,
		h.identify(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// Routes returns the patterns of all routes, as http.ServeMux has them.
func Routes() []string { return (&handlers{}).routes().Routes() }

// routes registers the REST API.
func (h *handlers) routes() *rest.Mux {
	m := rest.NewMux()
	m.Handle("GET /api/maestro", h.getAPI)
	m.Handle("GET /api/maestro/v1", h.getAPIVersion)
	m.Handle("GET /api/maestro/v1/openapi", h.getOpenAPI)
	m.Handle("GET /api/maestro/v1/errors", h.listErrors)
	m.Handle("GET /api/maestro/v1/errors/{id}", h.getError)
	m.Handle("GET /api/maestro/v1/consumers", h.listConsumers)
	m.Handle("POST /api/maestro/v1/consumers", h.postConsumer)
	m.Handle("GET /api/maestro/v1/consumers/{id}", h.getConsumer)
	m.Handle("PATCH /api/maestro/v1/consumers/{id}", h.patchConsumer)
	m.Handle("DELETE /api/maestro/v1/consumers/{id}", h.deleteConsumer)
	m.Handle("GET /api/maestro/v1/resource-bundles", h.listBundles)
	m.Handle("GET /api/maestro/v1/resource-bundles/{id}", h.getBundle)
	m.Handle("DELETE /api/maestro/v1/resource-bundles/{id}", h.deleteBundle)
	m.Handle("GET /api/maestro/v1"+audit.Path, h.listAudit)
	m.Handle("GET /api/maestro/v1/unknown-works", h.listUnknown)
	m.Handle("POST /api/maestro/v1/unknown-works/{consumer}/{id}/adopt", h.adoptUnknown)
	m.Handle("DELETE /api/maestro/v1/unknown-works/{consumer}/{id}", h.deleteUnknown)
	m.Handle("/", noRoute)
	return m
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

// identify authenticates the caller by its certificate, and refuses unknown callers (I10).
func (h *handlers) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, perr := pki.PeerName(r.TLS)
		if perr != nil {
			peer = ""
		}
		if r.TLS != nil {
			if err := h.admit(peer); err != nil {
				rest.Fail(w, r, err)
				return
			}
		}
		ctx := records.WithActor(r.Context(), peer, r.Header.Get, rest.OperationID(r.Context()))
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

// admit refuses a peer of a TLS listener that has no certificate of the region,
// or that may not call Maestro. Callers of a plain listener have no identity and
// are not checked: such a listener exists only on loopback, when configured.
func (h *handlers) admit(peer pki.Name) error {
	switch {
	case peer == "":
		return rest.Errorf(http.StatusUnauthorized, "maestro-15", "a client certificate of the region's CA is needed")
	case !h.MayCall(string(peer)):
		return rest.Errorf(http.StatusForbidden, apierror.CodeForbidden, "%s may not call Maestro", peer)
	}
	return nil
}
