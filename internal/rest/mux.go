package rest

import (
	"net/http"
	"slices"
	"strings"
)

// A Handler answers a request, or returns an error, which Fail answers. It may return an
// error after it has written a part of the answer: then Fail closes the connection, so
// that the client notices that the answer is incomplete.
type Handler func(w http.ResponseWriter, r *http.Request) error

func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		Fail(w, r, err)
	}
}

// Mux is an http.ServeMux that takes Handlers and lists its routes. It answers requests
// without a route in the service's own error shape. Use NewMux.
type Mux struct {
	// PlainMethods makes the answer to a wrong method that of ServeMux, 405 in plain text,
	// as some contracts have it.
	PlainMethods bool

	mux    *http.ServeMux
	routes []string
}

// NewMux returns an empty Mux.
func NewMux() *Mux { return &Mux{mux: http.NewServeMux()} }

// Handle registers h for a pattern of http.ServeMux that names a method, such
// as "GET /things/{id}". It panics on a bad or conflicting pattern.
func (m *Mux) Handle(pattern string, h Handler) { m.HandleHTTP(pattern, h) }

// HandleHTTP registers an ordinary http.Handler.
func (m *Mux) HandleHTTP(pattern string, h http.Handler) {
	m.mux.Handle(pattern, h)
	m.routes = append(m.routes, pattern)
}

// Routes returns the registered patterns, sorted. Tests compare them with the OpenAPI
// document, and check that each route requires an identity.
func (m *Mux) Routes() []string {
	return slices.Sorted(slices.Values(m.routes))
}

// Route returns the pattern that a request matches, "" if none does. Middleware
// authorizes the caller by it.
func (m *Mux) Route(r *http.Request) string {
	_, pattern := m.mux.Handler(r)
	return pattern
}

func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, pattern := m.mux.Handler(r)
	if pattern == "" {
		m.unmatched(w, r, h)
		return
	}
	callOf(r.Context()).route = pattern
	m.mux.ServeHTTP(w, r)
}

// unmatched answers a request without a route: 404, or 405 if the path has a route of
// another method.
func (m *Mux) unmatched(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		if m.PlainMethods {
			h.ServeHTTP(w, r)
			return
		}
		allow := probe.header.Get("Allow")
		e := Errorf(http.StatusMethodNotAllowed, "method-not-allowed", "%s is not allowed here; allowed: %s", r.Method,
			allow)
		e.Header = http.Header{"Allow": {allow}}
		Fail(w, r, e)
		return
	}
	Fail(w, r, Errorf(http.StatusNotFound, "not-found", "there is nothing at %s", Shorten(r.URL.Path, 200)))
}

// probe records status and headers of an answer of ServeMux.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }

// Shorten cuts s to n bytes for a message.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
