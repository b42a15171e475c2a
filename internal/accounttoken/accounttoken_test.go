package accounttoken

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/internal/quick"
)

// tokenOf returns a token without a signature.
func tokenOf(issued time.Time, life time.Duration) string {
	payload := fmt.Sprintf(`{"iat":%d,"exp":%d,"kubernetes.io":{"namespace":"ns","serviceaccount":{"name":"sa"}}}`,
		issued.Unix(), issued.Add(life).Unix())
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".none"
}

// writeKubeconfig writes a kubeconfig with a token.
func writeKubeconfig(t *testing.T, server, token string) (file string) {
	t.Helper()
	c := api.NewConfig()
	c.Clusters["c"] = &api.Cluster{Server: server, InsecureSkipTLSVerify: true}
	c.AuthInfos["u"] = &api.AuthInfo{Token: token}
	c.Contexts["x"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	data, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestATokenIsRenewedAfterHalfOfItsLife(t *testing.T) {
	quick.LeavesOut(t, "waits for tokens that expire")
	old, next := tokenOf(time.Now().Add(-13*time.Hour), Life), tokenOf(time.Now(), Life)
	renewed := make(chan error, 1)
	failures := 1
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if failures > 0 {
			failures--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var request struct {
			Spec struct {
				ExpirationSeconds int64 `json:"expirationSeconds"`
			} `json:"spec"`
		}
		err := json.Unmarshal(body, &request)
		if r.Header.Get("Authorization") != "Bearer "+old || request.Spec.ExpirationSeconds != 24*3600 ||
			r.URL.Path != "/api/v1/namespaces/ns/serviceaccounts/sa/token" {
			err = fmt.Errorf("the request %s %s with %s, %v", r.Method, r.URL.Path, body, err)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","status":{"token":%q}}`, next)
		renewed <- err
	}))
	defer server.Close()
	file := writeKubeconfig(t, server.URL, old)
	a, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Renew(ctx, slog.New(slog.DiscardHandler)) }()
	if err := <-renewed; err != nil {
		t.Error(err)
	}
	for *a.token.Load() != next || !strings.Contains(read(t, file), next) {
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the token was not renewed")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Contains(read(t, file), old) {
		t.Error("the file has the old token, too")
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}

	seen := make(chan string, 1)
	echo := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
	}))
	defer echo.Close()
	httpClient, err := rest.HTTPClientFor(a.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	res, err := httpClient.Get(echo.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := <-seen; got != "Bearer "+next {
		t.Error("clients send another token than the new one")
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestOnlyBoundTokensAreRenewed(t *testing.T) {
	now := time.Now()
	for what, test := range map[string]struct {
		token string
		wait  time.Duration
		ok    bool
	}{
		"a new token":             {tokenOf(now, Life), Life / 2, true},
		"a token of ten hours":    {tokenOf(now.Add(-10*time.Hour), Life), 2 * time.Hour, true},
		"an expired token":        {tokenOf(now.Add(-30*time.Hour), Life), -18 * time.Hour, true},
		"a token without an end":  {"e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"x"}`)) + ".none", 0, false},
		"a token that is no JWT":  {"abcdef.0123456789abcdef", 0, false},
		"a kubeconfig without it": {"", 0, false},
	} {
		a, err := Open(writeKubeconfig(t, "https://127.0.0.1:1", test.token))
		if err != nil {
			t.Fatal(err)
		}
		wait, ok := a.untilRenewal(now)
		if ok != test.ok || (wait-test.wait).Abs() > 2*time.Second {
			t.Errorf("%s: renewed after %s, %v; want %s, %v", what, wait, ok, test.wait, test.ok)
		}
		if config := a.RESTConfig(); !ok && config.BearerToken != test.token {
			t.Errorf("%s: the configuration has the token %q", what, config.BearerToken)
		}
	}
}

// A clock that is a day ahead of the API server's must not make each new token look old.
func TestTheNextRenewalDoesNotDependOnTheClock(t *testing.T) {
	a, err := Open(writeKubeconfig(t, "https://127.0.0.1:1", tokenOf(time.Now().Add(-24*time.Hour), Life)))
	if err != nil {
		t.Fatal(err)
	}
	if got := a.halfLife(); got != Life/2 {
		t.Errorf("the next renewal is after %s, want %s", got, Life/2)
	}
}

// A machine was suspended until the token had expired: the process takes the token of the next bootstrap from the file.
func TestAProcessWithAnExpiredTokenTakesANewerOneFromItsFile(t *testing.T) {
	quick.LeavesOut(t, "waits for tokens that expire")
	old, next := tokenOf(time.Now().Add(-48*time.Hour), Life), tokenOf(time.Now(), Life)
	refused := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+old {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		select {
		case <-refused:
		default:
			close(refused)
		}
	}))
	defer server.Close()
	file := writeKubeconfig(t, server.URL, old)
	a, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if a.readNewer() {
		t.Error("the same token counts as newer")
	}
	newer, err := os.ReadFile(writeKubeconfig(t, server.URL, next))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Renew(ctx, slog.New(slog.DiscardHandler)) }()
	<-refused // a request with the newer token
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if *a.token.Load() != next {
		t.Error("the process has another token than that of the file")
	}
}
