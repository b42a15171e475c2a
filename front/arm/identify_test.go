package arm

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/test/testsite"
)

// TestARedirectToClearTextGivesNoCertificates serves metadata at a URL without TLS, to which a URL with TLS leads.
func TestARedirectToClearTextGivesNoCertificates(t *testing.T) {
	read := false
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { read = true }))
	defer plain.Close()
	var target string
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metadata" {
			http.Redirect(w, r, target, http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("moved"))
	}))
	defer secure.Close()
	file := filepath.Join(t.TempDir(), "metadata.json")
	der := base64.StdEncoding.EncodeToString(secure.Certificate().Raw)
	if err := os.WriteFile(file, []byte(`{"clientCertificates":[{"certificate":"`+der+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := NewCertificates(t.Context(), file, testsite.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	c.source, c.client.Transport = secure.URL+"/metadata", secure.Client().Transport
	target = plain.URL + "/metadata"
	if _, err := c.read(t.Context()); err == nil || !strings.Contains(err.Error(), "is refused") || read {
		t.Errorf("the redirect to %s: %v, read: %t", target, err, read)
	}
	target = secure.URL + "/moved"
	if data, err := c.read(t.Context()); err != nil || string(data) != "moved" {
		t.Errorf("the redirect to %s: %q, %v", target, data, err)
	}
	target = secure.URL + "/metadata"
	if _, err := c.read(t.Context()); err == nil || !strings.Contains(err.Error(), "redirects") {
		t.Errorf("a circle of redirects: %v", err)
	}
}
