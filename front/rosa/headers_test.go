package rosa

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"atoll.dev/internal/rest"
)

// A browser gets no right to read an answer for another page, and no cache keeps one: public answers, refusals, unknown
// paths and answers of handlers alike.
func TestEveryAnswerHasSecurityHeadersAndNoneAllowsAnotherOrigin(t *testing.T) {
	h := New(Options{Maestro: unreachable(t), Identifier: operatorIdentity{}, Policy: allowAll{}, Ops: rest.NewOps(),
		Log: quiet})
	for _, c := range []struct{ method, path string }{
		{"GET", "/api/v0/live"}, {"GET", "/api/v0/openapi"}, {"GET", "/api/v0/whoami"}, {"GET", "/nothing"},
		{"POST", "/api/v0/clusters/a/credentials"}, {"OPTIONS", "/api/v0/clusters"}, {"GET", "/api/v0/audit"},
		{"DELETE", "/api/v0/live"},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader("{}"))
		r.Header.Set("Origin", "https://evil.example")
		r.Header.Set("Access-Control-Request-Method", "POST")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got := w.Result().Header
		for name, value := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Strict-Transport-Security": "max-age=31536000", "Referrer-Policy": "no-referrer"} {
			if got.Get(name) != value {
				t.Errorf("%s %s (%d): %s is %q, want %q", c.method, c.path, w.Code, name, got.Get(name), value)
			}
		}
		if !strings.Contains(got.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s %s: Content-Security-Policy is %q", c.method, c.path, got.Get("Content-Security-Policy"))
		}
		for name := range got {
			if strings.HasPrefix(http.CanonicalHeaderKey(name), "Access-Control-") {
				t.Errorf("%s %s allows another origin: %s: %s", c.method, c.path, name, got.Get(name))
			}
		}
	}
}
