package rosa_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"atoll.dev/access"
	"atoll.dev/api/platform"
	"atoll.dev/client/maestroclient"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
)

// Every signed route may refuse a caller: 403, 429 and 503 are in the document of each, and the last two
// say when to try again.
func TestEverySignedRouteDocumentsItsLimits(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(platform.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	headers := map[string][]string{
		"403": nil, "503": {"Retry-After"},
		"429": {"Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"},
	}
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.Security != nil && len(*operation.Security) == 0 {
				continue // live and ready
			}
			for code, names := range headers {
				answer := operation.Responses.Value(code)
				if answer == nil {
					t.Errorf("%s %s does not document %s", method, path, code)
					continue
				}
				for _, name := range names {
					if answer.Value.Headers[name] == nil {
						t.Errorf("%s %s does not document the header %s of %s", method, path, name, code)
					}
				}
			}
		}
	}
	for code, name := range map[string]string{
		"rate-limited": "TooManyRequests", "too-many-bodies": "TooManyRequests", "signature-used": "Forbidden",
		"presigned-method": "Forbidden", "overloaded": "Unavailable", "signatures-not-ready": "Unavailable",
		"keys-not-ready": "Unavailable", "policies-not-ready": "Unavailable",
	} {
		if !strings.Contains(*doc.Components.Responses[name].Value.Description, "`"+code+"`") {
			t.Errorf("the answer %s does not name the code %s", name, code)
		}
	}
}

// provenIdentity is claimedIdentity whose requests have a signature, each its own.
type provenIdentity struct{ claimedIdentity }

func (p provenIdentity) Identify(r *http.Request) (access.Identity, []byte, error) {
	caller, body, err := p.claimedIdentity.Identify(r)
	caller.Proof.ValidUntil = time.Now().Add(time.Minute)
	_, _ = rand.Read(caller.Proof.Signature[:]) // it cannot fail
	return caller, body, err
}

// refusingSignatures gives each use of a signature the same error.
type refusingSignatures struct{ error }

func (s refusingSignatures) Use(context.Context, access.Proof) error { return s.error }

// The answers of limits and of signatures are as the document says, headers and body.
func TestRefusalsAreAsDocumented(t *testing.T) {
	maestro, err := maestroclient.New(maestroclient.Options{HTTP: "http://127.0.0.1:1", GRPC: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = maestro.Close() })
	serve := func(limits access.Limits, used error, method, path string) (*http.Response, string) {
		h := rosa.New(rosa.Options{Maestro: maestro, Identifier: provenIdentity{}, Region: region, Ops: rest.NewOps(),
			Limiter: access.NewLimiter(limits), Signatures: refusingSignatures{used}, Log: slog.New(slog.DiscardHandler)})
		var w *httptest.ResponseRecorder
		for range 2 {
			r := httptest.NewRequest(method, "/api/v0"+path, strings.NewReader(`{}`))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Test-Principal", regionOperator) // an allowed mutation uses its signature
			w = httptest.NewRecorder()
			asDocumented(t, h).ServeHTTP(w, r)
		}
		answer := w.Result()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(body)
	}
	slow := access.Rate{PerSecond: 0.5, Burst: 1}
	one := access.Limits{Rates: map[access.Class]access.Rate{access.Reads: slow, access.Writes: slow}}
	for _, c := range []struct {
		limits       access.Limits
		used         error
		method, path string
		status       int
		code         string
	}{
		{one, nil, "GET", "/whoami", 429, "rate-limited"},
		{one, nil, "POST", "/clusters", 429, "rate-limited"},
		{access.Limits{}, access.ErrUsed, "POST", "/clusters", 403, "signature-used"},
		{access.Limits{}, errors.New("the database is down"), "POST", "/clusters", 503, "signatures-not-ready"},
	} {
		answer, body := serve(c.limits, c.used, c.method, c.path)
		if answer.StatusCode != c.status || !strings.Contains(body, c.code) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, answer.StatusCode, body, c.status, c.code)
		}
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
			if answer.Header.Get(name) == "" {
				t.Errorf("%s %s: %d without %s", c.method, c.path, answer.StatusCode, name)
			}
		}
		if answer.Header.Get("Retry-After") == "" && c.status != 403 {
			t.Errorf("%s %s: %d without Retry-After", c.method, c.path, answer.StatusCode)
		}
	}
}
