package test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// openAPI proves that the documents that are built when a client asks for them are those of upstream's server: all that
// the list names, under the URL of the list, in each encoding, and cached as upstream says.
func (p *plane) openAPI(t *testing.T) {
	config := p.config()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	get := func(url, accept string, status int) (*http.Response, []byte) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", accept)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != status {
			t.Fatalf("GET %s: %s instead of %d, %v: %.200s", url, response.Status, status, err, body)
		}
		return response, body
	}

	var list struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	// The aggregator takes each document from any server that has it: all must agree, each time.
	for range 20 {
		have := list.Paths
		list.Paths = nil
		_, body := get("/openapi/v3", "application/json", http.StatusOK)
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatal(err)
		}
		if have != nil && !maps.Equal(have, list.Paths) {
			t.Fatalf("the list of documents changes: %v, %v", have, list.Paths)
		}
	}
	for _, name := range []string{"api/v1", "apis/apps/v1", "apis/apiregistration.k8s.io/v1",
		"apis/apiextensions.k8s.io/v1", "version"} {
		if list.Paths[name].ServerRelativeURL == "" {
			t.Errorf("the list has no %s", name)
		}
	}
	var all sync.WaitGroup // asks for all at once, before anybody has asked for one
	for _, document := range list.Paths {
		all.Go(func() {
			response, err := client.Get(config.Host + document.ServerRelativeURL)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("GET %s: %s, %v", document.ServerRelativeURL, response.Status, err)
			}
		})
	}
	all.Wait()
	for name, document := range list.Paths {
		response, body := get(document.ServerRelativeURL, "application/json", http.StatusOK)
		var content struct{ Paths map[string]any }
		if err := json.Unmarshal(body, &content); err != nil || len(content.Paths) == 0 {
			t.Errorf("%s: %v, %d paths", name, err, len(content.Paths))
		}
		for path := range content.Paths {
			if !strings.HasPrefix(path, "/"+name) {
				t.Errorf("the document %s has the path %s", name, path)
			}
		}
		if have := response.Header.Get("Cache-Control"); have != "public, immutable" {
			t.Errorf("%s: Cache-Control: %q", name, have)
		}
	}

	apps := list.Paths["apis/apps/v1"].ServerRelativeURL
	response, _ := get("/openapi/v3/apis/apps/v1?hash=OLD", "application/json", http.StatusMovedPermanently)
	if have := response.Header.Get("Location"); have != apps {
		t.Errorf("another hash leads to %s instead of %s", have, apps)
	}
	response, _ = get("/openapi/v3/apis/apps/v1", "application/json", http.StatusOK)
	if have := response.Header.Get("Cache-Control"); strings.Contains(have, "immutable") {
		t.Errorf("a document without its hash is cached for good: %q", have)
	}
	response, _ = get(apps, "text/plain", http.StatusNotAcceptable)
	if have := response.Header.Get("Cache-Control"); strings.Contains(have, "immutable") {
		t.Errorf("an error is cached for good: %q", have)
	}
	const protobuf = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	if response, _ = get(apps, protobuf, http.StatusOK); response.Header.Get("Content-Type") != protobuf {
		t.Errorf("the answer to %s is %s", protobuf, response.Header.Get("Content-Type"))
	}
	get("/openapi/v3/apis/apps/v0", "application/json", http.StatusNotFound)

	_, body := get("/openapi/v2", "application/json", http.StatusOK)
	for _, path := range []string{"/apis/apps/v1/namespaces/{namespace}/deployments",
		"/apis/apiregistration.k8s.io/v1/apiservices", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"} {
		if !strings.Contains(string(body), fmt.Sprintf("%q", path)) {
			t.Errorf("the document of OpenAPI v2 has no %s", path)
		}
	}
	get("/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf", http.StatusOK)

	kubeconfig := "--kubeconfig=" + filepath.Join(p.dir, "admin.kubeconfig")
	out, err := exec.Command(binary(t), "kubectl", kubeconfig, "explain", "deployment.spec.replicas").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Number of desired pods") {
		t.Errorf("kubectl explain: %v: %s", err, out)
	}
}
