package access

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/internal/quick"
	"atoll.dev/internal/rest"
)

// curlServer serves a front's stack, over HTTP/1.1 and HTTP/2, to real curl,
// and answers with what the handler saw.
func curlServer(t *testing.T) (url, ca string) {
	rt := NewRouter(Options{Identifier: &Verifier{Region: testRegion, Keys: testKeys()}, Log: quiet})
	handleEverything(rt, func(w http.ResponseWriter, r *http.Request) error {
		id, ok := FromContext(r.Context())
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		return rest.WriteJSON(w, http.StatusOK, map[string]any{
			"principal": id.Principal, "identified": ok, "path": r.URL.Path, "query": r.URL.RawQuery,
			"body": string(body),
		})
	})
	srv := httptest.NewUnstartedServer(rest.Observe(rest.Options{Log: quiet}, rt))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	return srv.URL, ca
}

// curl runs the program curl and returns the status and the body.
func curl(t *testing.T, url, ca, user string, args ...string) (status, body string) {
	t.Helper()
	args = append([]string{"--silent", "--show-error", "--cacert", ca, "--max-time", "20",
		"--aws-sigv4", "aws:amz:" + testRegion + ":execute-api", "--user", user, "--write-out", "\n%{http_code}"},
		append(args, url)...)
	out, err := exec.CommandContext(t.Context(), "curl", args...).Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			t.Fatalf("curl %q: %v: %s", args, err, e.Stderr)
		}
		t.Fatalf("this test needs curl, see README: %v", err)
	}
	i := strings.LastIndexByte(string(out), '\n')
	return string(out[i+1:]), string(out[:i])
}

func TestWhatRealCurlSigns(t *testing.T) {
	quick.LeavesOut(t, "runs curl")
	url, ca := curlServer(t)
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte(strings.Repeat("line\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{
		"/",
		"/prod/api/v0/management_clusters",
		"/prod/api/v0/management_clusters?page=2&size=50",
		"/api/v0/work?size=50&page=2",
		"/api/v0/work?size=50&page=2&a=2&a=1&flag",
		"/api/v0/work?search=name%20like%20%27a%25%27",
		"/api/v0/work?search=name+like+%27a%25%27",
		"/api/v0/work?lower=%2f%c3%bc&UPPER=%2F%C3%BC",
		"/api/v0/work?plain=a/b:c@d,e;f$g!h*i'j(k)",
		"/api/v0/work?=empty&&x==y",
		"/api/v0/work?",
		"/api/v0/work/a%20b",
		"/api/v0/work/a%2Fb",
		"/api/v0/work/a%c3%bcb",
		"/api/v0/work/a:b@c,d;e=f$g&h+i!j*k'l(m)~n",
		"/api/v0/work/ü?ü=ß",
		"/api/v0/work?undecodable=%zz",
	} {
		for name, args := range map[string][]string{
			"GET":           nil,
			"HTTP/1.1":      {"--http1.1"},
			"POST":          {"-d", `{"name":"x","path":"/ü"}`},
			"POST empty":    {"-d", ""},
			"POST JSON":     {"-H", "Content-Type: application/json", "-d", `{"name":"x"}`},
			"POST --json":   {"--json", `{"name":"x"}`},
			"POST file":     {"--data-binary", "@" + file},
			"PUT":           {"-X", "PUT", "-d", `{"name":"x"}`, "-H", `If-Match: "7"`},
			"DELETE":        {"-X", "DELETE"},
			"own headers":   {"-H", "X-Custom:  two  spaces ", "-H", "Accept:"},
			"x-amz headers": {"-H", "X-Amz-Zzz: 1", "-H", "x-amz-account-id: 000000000000"},
			"HEAD":          {"--head"},
		} {
			t.Run(name+" "+target, func(t *testing.T) {
				status, body := curl(t, url+target, ca, testID+":"+testSecret, args...)
				if status != "200" {
					t.Errorf("%s %s", status, body)
				}
			})
		}
	}
}

func TestWhatRealCurlIsRefused(t *testing.T) {
	url, ca := curlServer(t)
	for _, tc := range []struct {
		name, user string
		args       []string
		status     string
		want       Code
	}{
		{"wrong secret", testID + ":wrong", nil, "403", WrongSignature},
		{"unknown key", otherID + ":" + testSecret, nil, "403", UnknownKey},
		{"wrong region", testID + ":" + testSecret, []string{"--aws-sigv4", "aws:amz:us-east-1:execute-api"}, "403",
			WrongRegion},
		{"wrong service", testID + ":" + testSecret, []string{"--aws-sigv4", "aws:amz:" + testRegion + ":s3"}, "403",
			WrongService},
		{"other provider", testID + ":" + testSecret, []string{"--aws-sigv4", "osc:osc:" + testRegion + ":execute-api"},
			"403", UnsupportedAlgorithm},
		{"not the body", testID + ":" + testSecret, []string{"-X", "PUT", "-T", "/etc/hostname"}, "403",
			WrongSignature},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := curl(t, url+"/api/v0/work", ca, tc.user, tc.args...)
			if status != tc.status || !strings.Contains(body, fmt.Sprintf(`"code":"%s"`, tc.want)) {
				t.Errorf("%s %s", status, body)
			}
		})
	}
}

func TestABodyOverTheLimitIsRefusedToRealCurl(t *testing.T) {
	url, ca := curlServer(t)
	file := filepath.Join(t.TempDir(), "body")
	for size, want := range map[int]string{MaxBody: "200", MaxBody + 1: "413"} {
		if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		status, body := curl(t, url+"/api/v0/work", ca, testID+":"+testSecret, "--data-binary", "@"+file, "-o",
			os.DevNull)
		if status != want {
			t.Errorf("%d bytes: %s %s", size, status, body)
		}
	}
}
