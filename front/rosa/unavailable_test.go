package rosa

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/internal/quick"
	"atoll.dev/internal/rest"
)

// unreachable returns a client of a Maestro at an address where nobody listens.
func unreachable(t *testing.T) *maestroclient.Client {
	t.Helper()
	m, err := maestroclient.New(maestroclient.Options{HTTP: "http://127.0.0.1:1", GRPC: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestUnavailableMaestroIs503Within2Seconds(t *testing.T) {
	quick.LeavesOut(t, "waits for services that do not answer")
	h := New(Options{Maestro: unreachable(t), Identifier: operatorIdentity{}, Ops: rest.NewOps(), Log: quiet})
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/api/v0/management_clusters", ""},
		{"GET", "/prod/api/v0/management_clusters/m", ""},
		{"POST", "/api/v0/management_clusters", `{"name":"m"}`},
		{"PATCH", "/api/v0/management_clusters/m", `{"state":"Cordoned"}`},
		{"DELETE", "/api/v0/management_clusters/m", ""},
		{"POST", "/api/v0/work", contractWork},
		{"GET", "/api/v0/work", ""},
		{"GET", "/api/v0/work/a", ""},
		{"PUT", "/api/v0/work/a", contractWork},
		{"DELETE", "/api/v0/work/a", ""},
		{"GET", "/api/v0/resource_bundles", ""},
		{"GET", "/api/v0/resource_bundles?watch=true", ""},
		{"GET", "/api/v0/resource_bundles/a", ""},
		{"DELETE", "/api/v0/resource_bundles/a", ""},
	} {
		start := time.Now()
		w := call(t, h, c.method, c.path, c.body)
		if took := time.Since(start); took > 30*time.Second { // 2 s; the rest is for a slow machine
			t.Errorf("%s %s took %s", c.method, c.path, took)
		}
		if w.Code != http.StatusServiceUnavailable || codeIn(t, w) != codeUnavailable ||
			w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s %s: %d, Retry-After %q, %s", c.method, c.path, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
		if strings.Contains(w.Body.String(), "127.0.0.1") {
			t.Errorf("%s %s shows where Maestro is: %s", c.method, c.path, w.Body)
		}
	}
}

// Without the lifecycle manager every call about clusters is 503 within 2 s.
func TestUnavailableLifecycleManagerIs503Within2Seconds(t *testing.T) {
	away, err := clmclient.New(clmclient.Options{Endpoint: "http://127.0.0.1:1", Budget: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(away.Close)
	for name, clm := range map[string]*clmclient.Client{"away": away, "none": nil} {
		h := New(Options{Maestro: unreachable(t), CLM: clm, Identifier: operatorIdentity{}, Ops: rest.NewOps(), Log: quiet})
		for _, r := range routesOf() {
			method, path, route := r.Method, r.Path, r.Path
			if !strings.HasPrefix(path, "/api/v0/clusters") && !strings.HasPrefix(path, "/api/v0/nodepools") {
				continue
			}
			const id = "0190a000-0000-7000-8000-000000000000"
			path = strings.NewReplacer("{id}", id, "{cid}", id).Replace(path)
			w := call(t, h, method, path, `{"name":"demo","cluster_id":"`+id+`","spec":{}}`)
			if path == "/api/v0/clusters/"+id+"/credentials" && method == "POST" {
				w = call(t, h, method, path, `{}`)
			}
			if strings.HasSuffix(path, "/restore") {
				w = call(t, h, method, path, `{"at":"2026-01-01T00:00:00Z"}`)
			}
			if strings.HasSuffix(path, "/rotate") {
				w = call(t, h, method, path, `{"key":"encryption","step":"prepare"}`)
			}
			if w.Code != http.StatusServiceUnavailable || codeIn(t, w) != codeNoLifecycle ||
				w.Header().Get("Retry-After") != "1" || strings.Contains(w.Body.String(), "127.0.0.1") {
				t.Errorf("%s: %s: %d, Retry-After %q, %s", name, route, w.Code, w.Header().Get("Retry-After"), w.Body)
			}
		}
	}
}

func TestReadyNamesMissingParts(t *testing.T) {
	h := New(Options{Maestro: unreachable(t), Identifier: operatorIdentity{}, Ops: rest.NewOps(), Log: quiet})
	if w := call(t, h, "GET", "/prod/api/v0/live", ""); w.Code != http.StatusOK ||
		strings.TrimSpace(w.Body.String()) != `{"status":"ok"}` {
		t.Errorf("live: %d %s", w.Code, w.Body)
	}
	w := call(t, h, "GET", "/api/v0/ready", "")
	var got platform.Health
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusServiceUnavailable || got.Status != platform.HealthStatusUnavailable ||
		len(got.Missing) != 1 || got.Missing[0].Name != "maestro" {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	if strings.Contains(w.Body.String(), "127.0.0.1") {
		t.Errorf("ready shows where Maestro is: %s", w.Body)
	}
}

func TestBadRequestsAreRefusedBeforeMaestro(t *testing.T) {
	h := New(Options{Maestro: unreachable(t), Identifier: operatorIdentity{}, Ops: rest.NewOps(), Log: quiet})
	huge := `{"cluster_id":"m","data":"` + strings.Repeat("x", maxBody) + `"}`
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"POST", "/api/v0/work", `{"data":{}}`, 400, codeMissingCluster},
		{"POST", "/api/v0/work", `{}`, 400, codeMissingCluster},
		{"POST", "/api/v0/work", `{`, 400, rest.CodeInvalid},
		{"POST", "/api/v0/work", `{"cluster_id":"A"}`, 400, rest.CodeInvalid},
		{"POST", "/api/v0/work", `{"cluster_id":"m"}`, 400, codeMissingData},
		{"POST", "/api/v0/work", huge, 413, rest.CodeTooLarge},
		{"PUT", "/api/v0/work/a", huge, 413, rest.CodeTooLarge},
		{"PUT", "/api/v0/work/a", `{}`, 400, codeMissingData},
		{"GET", "/api/v0/work/%00", "", 404, codeNotFound},
		{"GET", "/api/v0/work/a%2Fb", "", 404, codeNotFound},
		{"GET", "/api/v0/work?cluster_id=a'b", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/work?page=0", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/resource_bundles?search=%00", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/resource_bundles?search=%ff", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/resource_bundles?search=%zz", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/resource_bundles?watch=perhaps", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/resource_bundles?size=x", "", 400, rest.CodeInvalid},
		{"GET", "/api/v0/management_clusters/%FF", "", 404, codeNotFound},
		{"POST", "/api/v0/management_clusters", `{"name":"m","labels":{"a":1}}`, 400, rest.CodeInvalid},
		{"POST", "/api/v0/management_clusters", `{"name":"m","capacity":{"planes":-1}}`, 400, rest.CodeInvalid},
		{"PATCH", "/api/v0/management_clusters/m", `{"state":"Lost"}`, 400, rest.CodeInvalid},
		{"PATCH", "/api/v0/management_clusters/m", `{"versions":[""]}`, 400, rest.CodeInvalid},
		{"PATCH", "/api/v0/work/a", "", 405, "method-not-allowed"},
		{"GET", "/api/v1/work", "", 404, codeNotFound},
		{"GET", "/prod", "", 404, codeNotFound},
	} {
		w := call(t, h, c.method, c.path, c.body)
		if w.Code != c.status || codeIn(t, w) != c.code {
			t.Errorf("%s %s: %d %s; want %d %s", c.method, c.path, w.Code, w.Body, c.status, c.code)
		}
	}
	for _, tag := range []string{`"nonsense"`, `"0"`, `W/"1"`, `"-1"`} {
		r := httptest.NewRequestWithContext(t.Context(), "PUT", "/api/v0/work/a", strings.NewReader(contractWork))
		r.Header.Set("If-Match", tag)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusPreconditionFailed || codeIn(t, w) != codePrecondition {
			t.Errorf("If-Match: %s, which no version can have: %d %s", tag, w.Code, w.Body)
		}
	}
}
