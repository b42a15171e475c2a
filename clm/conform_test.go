package clm

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// contract holds every request and answer of a test against the OpenAPI
// document that its server gives out.
type contract struct{ router routers.Router }

// answerSchemas are the schemas of answers. A member that the document does not name is an error in
// them.
var answerSchemas = []string{"Metadata", "Resource", "ObjectReference", "ResourceStatus", "ResourceCondition",
	"Awaited", "ResourceList", "AdapterStatus",
	"AdapterCondition", "AdapterStatusList", "History", "HistoryRecord", "ReconcileRequest", "Problem", "ProblemField",
	"Quota", "QuotaExcess", "QuotaList"}

// agreed is the contract of the servers of tests, which have the same kinds.
var agreed = sync.OnceValues(func() (*contract, error) {
	registry, err := ParseRegistry([]byte(testEntities))
	if err != nil {
		return nil, err
	}
	specs, err := ParseSpecSchemas([]byte(testSchemas))
	if err != nil {
		return nil, err
	}
	text, err := registry.document(specs, nil)
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	for _, name := range answerSchemas {
		schema := doc.Components.Schemas[name]
		if schema == nil {
			return nil, fmt.Errorf("there is no schema %s", name)
		}
		no := false
		schema.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: &no}
	}
	doc.Servers = nil // wherever the test has it
	router, err := legacy.NewRouter(doc, openapi3.DisableExamplesValidation())
	if err != nil {
		return nil, err
	}
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.FileBodyDecoder)
	openapi3filter.RegisterBodyDecoder("application/merge-patch+json", openapi3filter.JSONBodyDecoder)
	return &contract{router}, nil
})

// check compares one exchange with the document: the answer, and an accepted request.
func (c *contract) check(t testing.TB, req *http.Request, sent string, a answer) {
	t.Helper()
	if c == nil { // a server of other kinds
		return
	}
	if a.header.Get("Content-Encoding") != "" || strings.Contains(req.URL.RawQuery, "fields=") {
		return // decoded elsewhere; a part of a document
	}
	req = req.Clone(req.Context())
	req.URL.Path = strings.TrimRight(req.URL.Path, "/")
	req.Body = io.NopCloser(strings.NewReader(sent))
	route, params, err := c.router.FindRoute(req)
	if err != nil {
		if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d, and %v", a.what, a.status, err)
		}
		return
	}
	options := &openapi3filter.Options{MultiError: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	input := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: options}
	if a.status < 300 {
		if err := openapi3filter.ValidateRequest(req.Context(), input); err != nil {
			t.Errorf("%s was granted, and is not documented: %v", a.what, err)
		}
	}
	output := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: a.status, Header: a.header,
		Options: options}
	if len(a.body) > 0 {
		output.Body = io.NopCloser(bytes.NewReader(a.body))
	}
	if err := openapi3filter.ValidateResponse(req.Context(), output); err != nil {
		t.Errorf("%s: the answer is not as documented: %v\n%s", a.what, err, a.body)
	}
}
