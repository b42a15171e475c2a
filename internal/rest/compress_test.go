package rest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// Answers are compressed when the client accepts gzip and the answer is long; the
// answers of watches never are.
func TestCompressDecidesByClientAndAnswer(t *testing.T) {
	long := strings.Repeat("x", 2*minCompressed)
	for name, test := range map[string]struct {
		accepts, contentType, body string
		knownLength, want          bool
	}{
		"a long answer":                      {"gzip", "application/json", long, false, true},
		"a long answer of known length":      {"br, GZIP;q=0.5", "application/json", long, true, true},
		"a client that accepts any coding":   {"*", "application/json", long, true, true},
		"a short answer":                     {"gzip", "application/json", "{}", true, false},
		"a watch":                            {"gzip", "application/json;stream=watch", long, false, false},
		"a client that does not accept gzip": {"deflate", "application/json", long, true, false},
		"a client that refuses gzip":         {"gzip;q=0, *", "application/json", long, true, false},
		"a client without the header":        {"", "application/json", long, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := Compress(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.contentType)
				if test.knownLength {
					w.Header().Set("Content-Length", strconv.Itoa(len(test.body)))
				}
				_, _ = io.WriteString(w, test.body)
			}))
			r := httptest.NewRequest("GET", "/", nil)
			if test.accepts != "" {
				r.Header.Set("Accept-Encoding", test.accepts)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Header().Get("Content-Encoding") == "gzip"; got != test.want {
				t.Errorf("compressed: %v, want %v", got, test.want)
			}
			if got := w.Header().Get("Vary"); got != "Accept-Encoding" {
				t.Errorf("Vary: %q", got)
			}
			if !test.want && w.Body.String() != test.body {
				t.Error("the answer was changed")
			}
		})
	}
}
