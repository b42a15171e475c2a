package rosa_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"atoll.dev/api/platform"
)

// answerSchemas are the schemas of answers. An answer may not have members that the
// document does not name.
var answerSchemas = []string{
	"Cluster", "ClusterStatus", "Endpoint", "PlacementRef", "ClusterList", "ClusterDeletion", "ClusterStatuses",
	"ControllerStatus", "Event", "EventList",
	"Credential", "CredentialList", "NodePool", "NodePoolStatus", "NodePoolList", "NodePoolDeletion",
	"NodePoolStatuses", "Error", "FieldError",
}

var documentRouter = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(platform.OpenAPI)
	if err != nil {
		return nil, err
	}
	for _, name := range answerSchemas {
		no := false
		doc.Components.Schemas[name].Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &no}
	}
	doc.Servers = nil // wherever the test has it
	return legacy.NewRouter(doc, openapi3.DisableExamplesValidation())
})

// asDocumented compares every answer of a handler, except streams, and every accepted
// request with the document.
func asDocumented(t testing.TB, h http.Handler) http.Handler {
	router, err := documentRouter()
	if err != nil {
		t.Fatal(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("watch") == "true" || q.Has("fields") ||
			strings.HasSuffix(r.URL.Path, "/openapi") ||
			strings.Contains(r.URL.Path, "/admins/") { // the test's router does not know %2F
			h.ServeHTTP(w, r)
			return
		}
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		r.Body = io.NopCloser(bytes.NewReader(sent))
		r.Header.Del("Accept-Encoding")
		kept := &keptAnswer{header: w.Header(), status: http.StatusOK}
		h.ServeHTTP(kept, r)
		holdAgainst(t, router, r, sent, kept)
		w.WriteHeader(kept.status)
		_, _ = w.Write(kept.body.Bytes())
	})
}

func holdAgainst(t testing.TB, router routers.Router, r *http.Request, sent []byte, a *keptAnswer) {
	what := r.Method + " " + r.URL.RequestURI()
	r = r.Clone(r.Context())
	r.URL = &url.URL{Path: strings.TrimPrefix(r.URL.Path, "/prod"), RawQuery: r.URL.RawQuery}
	r.Body = io.NopCloser(bytes.NewReader(sent))
	route, params, err := router.FindRoute(r)
	if err != nil {
		if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d, and %v", what, a.status, err)
		}
		return
	}
	options := &openapi3filter.Options{MultiError: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: options}
	if a.status < 300 && r.Method != http.MethodPatch { // merge patches have nulls
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			t.Errorf("%s was granted, and is not documented: %v", what, err)
		}
	}
	output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: a.status, Header: a.header,
		Options: options}
	if a.body.Len() > 0 {
		output.Body = io.NopCloser(bytes.NewReader(a.body.Bytes()))
	}
	if err := openapi3filter.ValidateResponse(r.Context(), output); err != nil {
		t.Errorf("%s: %d, not as documented: %v\n%s", what, a.status, err, a.body.Bytes())
	}
}

type keptAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) Header() http.Header         { return k.header }
func (k *keptAnswer) Write(p []byte) (int, error) { return k.body.Write(p) }
func (k *keptAnswer) WriteHeader(status int)      { k.status = status }
