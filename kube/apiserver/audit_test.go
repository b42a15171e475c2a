package apiserver

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheAuditLogTakesNoUnknownParameters(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, auditLogFile), []byte("{\"a\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]int{
		"":                      http.StatusOK,
		"?timeout=32s":          http.StatusOK, // of clients of client-go that have a time limit
		"?since=5m":             http.StatusBadRequest,
		"?timeout=1s&user=ada":  http.StatusBadRequest,
		"?%zz":                  http.StatusBadRequest,
		"?limit":                http.StatusBadRequest,
		"?timeout=1s;since=now": http.StatusBadRequest,
	} {
		w := httptest.NewRecorder()
		auditHandler{dir}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, auditPath+target, nil))
		if w.Code != want {
			t.Errorf("%q: %d %s, want %d", target, w.Code, w.Body, want)
		}
		if hasLog := strings.Contains(w.Body.String(), `{"a":1}`); hasLog != (want == http.StatusOK) {
			t.Errorf("%q: the answer has the log: %v", target, hasLog)
		}
	}
}
