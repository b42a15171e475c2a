package azure

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheStandInProvesItselfAndItsCallers runs the stand-in before a server that records what arrives.
func TestTheStandInProvesItselfAndItsCallers(t *testing.T) {
	var arrived []*http.Request
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived = append(arrived, r) // the requests come one after the other
		_, _ = w.Write([]byte("{}"))
	}))
	backend.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	backend.StartTLS()
	defer backend.Close()
	roots := x509.NewCertPool()
	roots.AddCert(backend.Certificate())
	options := Options{Dir: t.TempDir(), Endpoint: "https://arm.example", Location: "here", CA: "ca.pem",
		Backend: backend.URL,
		TLS:     &tls.Config{RootCAs: roots}, Log: slog.New(slog.DiscardHandler)}
	g, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	again, err := New(options)
	if err != nil || again.client != g.client || again.client.Location != "here" ||
		!bytes.Equal(again.gateway.Certificate[0], g.gateway.Certificate[0]) {
		t.Fatalf("a second start makes other secrets: %v", err)
	}
	if info, err := os.Stat(filepath.Join(options.Dir, ClientFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the secret: %v, %v", info, err)
	}
	do := func(method, path, token, form string) (int, map[string]any) {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(form))
		if form != "" {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("X-Ms-Client-Object-Id", "somebody else")
		r.Header.Set("X-Ms-Client-Request-Id", "c1")
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		var body map[string]any
		data, _ := io.ReadAll(w.Body)
		if err := json.Unmarshal(data, &body); err != nil {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, data)
		}
		return w.Code, body
	}
	form := func(secret string) string {
		return url.Values{"grant_type": {"client_credentials"}, "client_id": {g.client.ID},
			"client_secret": {secret}}.Encode()
	}
	tenant, subscription := "/"+g.client.Tenant, "/subscriptions/"+g.client.Subscription
	if status, body := do("POST", tenant+"/oauth2/v2.0/token", "", form("wrong")); status != 401 {
		t.Errorf("a wrong secret: %d %v", status, body)
	}
	if status, _ := do("POST", "/other/oauth2/v2.0/token", "", form(g.client.Secret)); status != 400 {
		t.Errorf("another tenant: %d", status)
	}
	if status, body := do("GET", tenant+"/v2.0/.well-known/openid-configuration", "", ""); status != 200 ||
		body["issuer"] != g.issuer() {
		t.Errorf("the issuer: %d %v", status, body)
	}
	if status, body := do("GET", tenant+"/discovery/v2.0/keys", "", ""); status != 200 || body["keys"] == nil {
		t.Errorf("the keys: %d %v", status, body)
	}
	status, body := do("POST", tenant+"/oauth2/v2.0/token", "", form(g.client.Secret))
	token, _ := body["access_token"].(string)
	if status != 200 || token == "" {
		t.Fatalf("the token: %d %v", status, body)
	}
	for _, wrong := range []string{"", "x", token[:len(token)-4] + "AAAA"} {
		if status, _ := do("GET", subscription+"/x/y", wrong, ""); status != 401 {
			t.Errorf("the token %q: %d", wrong, status)
		}
	}
	if status, _ := do("PUT", subscription, token, ""); status != 403 {
		t.Errorf("a program changes the subscription: %d", status)
	}
	// What az and Terraform ask before their first request for a resource.
	if status, body := do("GET", "/metadata/endpoints", "", ""); status != 200 ||
		body["authentication"].(map[string]any)["loginEndpoint"] != "https://arm.example/adfs" {
		t.Errorf("the endpoints: %d %v", status, body)
	}
	if status, body := do("GET", "/adfs/.well-known/openid-configuration", "", ""); status != 200 ||
		body["issuer"] != "https://arm.example/adfs" || body["access_token_issuer"] != g.issuer() {
		t.Errorf("AD FS: %d %v", status, body)
	}
	if status, body := do("POST", "/adfs/oauth2/token", "", form("wrong")); status != 401 {
		t.Errorf("a wrong secret at AD FS: %d %v", status, body)
	}
	if status, body := do("POST", "/adfs/oauth2/token", "", form(g.client.Secret)); status != 200 ||
		body["access_token"] == nil {
		t.Errorf("the token of AD FS: %d %v", status, body)
	}
	for _, path := range []string{"/subscriptions", "/tenants", subscription} {
		if status, _ := do("GET", path, "", ""); status != 401 {
			t.Errorf("%s without a token: %d", path, status)
		}
		if status, body := do("GET", path, token, ""); status != 200 ||
			!strings.Contains(fmt.Sprint(body), g.client.Tenant) {
			t.Errorf("%s: %d %v", path, status, body)
		}
	}
	if status, body := do("GET", "/subscriptions/another", token, ""); status != 404 {
		t.Errorf("another subscription: %d %v", status, body)
	}
	if len(arrived) != 0 {
		t.Fatalf("%d requests arrived at the region", len(arrived))
	}
	if status, _ := do("GET", subscription+"/x/y?a=b", token, ""); status != 200 || len(arrived) != 1 {
		t.Fatalf("a request with a token: %d, %d arrived", status, len(arrived))
	}
	r := arrived[0]
	if !bytes.Equal(r.TLS.PeerCertificates[0].Raw, g.gateway.Certificate[0]) || r.Header.Get("Authorization") != "" ||
		r.Header.Get("X-Ms-Client-Object-Id") != g.client.ID ||
		r.Header.Get("X-Ms-Home-Tenant-Id") != g.client.Tenant ||
		r.Header.Get("X-Ms-Client-Request-Id") != "c1" ||
		r.Referer() != "https://arm.example"+subscription+"/x/y?a=b" {
		t.Errorf("what arrived: %v", r.Header)
	}
	if err := g.Run(t.Context()); err != nil || len(arrived) != 2 || arrived[1].Method != "PUT" ||
		arrived[1].URL.Path != subscription {
		t.Errorf("the registration of the subscription: %v, %d", err, len(arrived))
	}
}
