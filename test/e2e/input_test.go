package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/test/localtest"
)

// The answer to a wrong request is a 4xx with a remedy.
func TestBadInputIsAClientError(t *testing.T) {
	r := localtest.Shared(t)
	work := func(manifest string) string {
		return `{"cluster_id":"management-01","data":{"apiVersion":"work.open-cluster-management.io/v1",` +
			`"kind":"ManifestWork","metadata":{"name":"bad"},"spec":{"workload":{"manifests":[` + manifest + `]}}}}`
	}
	large := filepath.Join(t.TempDir(), "large")
	write(t, large, []byte(work(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"k":"`+
		strings.Repeat("x", 5<<20)+`"}}`)))
	for _, c := range []struct {
		name   string
		path   string
		args   []string
		status int
		want   string // in the body
	}{
		{"no JSON", "/api/v0/work", []string{"-X", "POST", "-d", "{"}, 400, "invalid-request"},
		{"no cluster", "/api/v0/work", []string{"-X", "POST", "-d", `{"data":{}}`}, 400, "missing-cluster-id"},
		{"no data", "/api/v0/work", []string{"-X", "POST", "-d", `{"cluster_id":"management-01"}`}, 400,
			"missing-data"},
		{"another kind", "/api/v0/work", []string{"-X", "POST", "-d",
			`{"cluster_id":"management-01","data":{"apiVersion":"v1","kind":"Pod"}}`}, 400,
			"invalid-manifestwork-type"},
		{"an unknown consumer", "/api/v0/work", []string{"-X", "POST", "-d",
			strings.Replace(work(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`), "management-01",
				"nowhere", 1)}, 404, "nowhere"},
		{"a manifest without kind", "/api/v0/work", []string{"-X", "POST", "-d",
			work(`{"apiVersion":"v1","metadata":{"name":"x"}}`)}, 400, "kind"},
		{"more than 4 MiB", "/api/v0/work", []string{"-X", "POST", "--data-binary", "@" + large}, 413, ""},
		{"an unknown work", "/api/v0/work/00000000-0000-0000-0000-000000000000", nil, 404, "not-found"},
		{"a bad name", "/api/v0/management_clusters", []string{"-X", "POST", "-d", `{"name":"Not A Name"}`}, 400, ""},
		{"a name that is taken", "/api/v0/management_clusters", []string{"-X", "POST", "-d",
			`{"name":"management-01"}`}, 409, "already exists"},
		{"an unknown route", "/api/v0/nothing", nil, 404, ""},
		{"another method", "/api/v0/live", []string{"-X", "POST"}, 405, "allowed"},
		{"a key that nobody has", "/api/v0/work", []string{"--user", "AKIAAAAAAAAAAAAAAAAA:secret"}, 403, ""},
		{"a wrong secret", "/api/v0/work", []string{"--user", r.Env["AWS_ACCESS_KEY_ID"] + ":wrong"}, 403, "signature"},
		{"another region's signature", "/api/v0/work", []string{"--aws-sigv4", "aws:amz:mars-1:execute-api"}, 403,
			"region"},
		{"another service's signature", "/api/v0/work", []string{"--aws-sigv4", "aws:amz:" + r.Env["AWS_REGION"] +
			":s3"}, 403, "service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := *r
			r.T = t
			status, headers, body := r.Curl(c.path, c.args...)
			if status != c.status || !strings.Contains(strings.ToLower(body), c.want) {
				t.Errorf("%d %s, want %d with %q", status, body, c.status, c.want)
			}
			var e struct{ Kind, Code, Reason string }
			if err := json.Unmarshal([]byte(body), &e); err != nil || e.Kind != "Error" || e.Code == "" ||
				e.Reason == "" {
				t.Errorf("the body is not an error that explains itself: %s", body)
			}
			if status == 403 && !strings.Contains(strings.ToLower(headers), "x-amzn-errortype:") {
				t.Errorf("no x-amzn-ErrorType in\n%s", headers)
			}
		})
	}
}

// I10: without an identity nothing but live and ready answers, whatever a
// header claims.
func TestI10UnverifiedIdentitiesGiveNoRights(t *testing.T) {
	r := localtest.Shared(t)
	for path, want := range map[string]int{
		"/api/v0/live": 200, "/prod/api/v0/live": 200, "/api/v0/ready": 200, "/api/v0/work": 403,
		"/prod/api/v0/resource_bundles": 403, "/api/v0/openapi": 403, "/": 403,
	} {
		out, err := exec.Command("curl", "-sS", "--cacert", r.Env["ATOLL_CA"], "-H", "X-Amz-Account-Id: 000000000000",
			"-H", "X-Amz-Caller-Arn: arn:aws:iam::000000000000:user/admin", "-w", "%{http_code}", "-o", "/dev/null",
			r.Env["ATOLL_ENDPOINT"]+path).Output()
		if err != nil || string(out) != strconv.Itoa(want) {
			t.Errorf("%s: %s %v, want %d", path, out, err, want)
		}
	}
}

func TestADisabledKeyIsRefused(t *testing.T) {
	r := localtest.Shared(t)
	var key struct{ AccessKeyID, SecretAccessKey string }
	if err := json.Unmarshal([]byte(r.Atoll("key", "create", "--account", "123456789012", "-o", "json")),
		&key); err != nil {
		t.Fatal(err)
	}
	user := []string{"--user", key.AccessKeyID + ":" + key.SecretAccessKey}
	localtest.Eventually(t, 3*time.Minute, func() error {
		if status, _, body := r.Curl("/api/v0/work", user...); status != 403 ||
			!strings.Contains(body, "account-not-provisioned") {
			return fmt.Errorf("an account that may do nothing: %d %s", status, body)
		}
		return nil
	})
	r.Atoll("key", "create", "--account", "123456789012", "--privileged")
	localtest.Eventually(t, 3*time.Minute, func() error {
		if status, _, body := r.Curl("/api/v0/work", user...); status != 200 {
			return fmt.Errorf("privileged: %d %s", status, body)
		}
		return nil
	})
	r.Atoll("key", "disable", key.AccessKeyID)
	localtest.Eventually(t, 3*time.Minute, func() error {
		if status, _, body := r.Curl("/api/v0/work", user...); status != 403 {
			return fmt.Errorf("disabled: %d %s", status, body)
		}
		return nil
	})
	if out := r.Atoll("key", "list"); !strings.Contains(out, key.AccessKeyID) ||
		strings.Contains(out, key.SecretAccessKey) {
		t.Errorf("key list: %s", out)
	}
}

func TestEveryServiceServesHealthAndMetrics(t *testing.T) {
	r := localtest.Shared(t)
	data, err := os.ReadFile(filepath.Join(r.Home, "region.json"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ Ports map[string]int }
	if err := json.Unmarshal(data, &state); err != nil {
		t.Fatal(err)
	}
	services := 0
	for name, port := range state.Ports {
		if !strings.HasSuffix(name, "-ops") {
			continue
		}
		services++
		for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ok", "/metrics": "go_goroutines"} {
			localtest.Eventually(t, 3*time.Minute, func() error { // a busy database makes services unready for a moment
				resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), want) {
					return fmt.Errorf("%s%s: %d %.200s %v", name, path, resp.StatusCode, body, err)
				}
				return nil
			})
		}
	}
	if services < 5 {
		t.Errorf("only %d services have such a port", services)
	}
}
