package cli

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/cli/services"
	"atoll.dev/client"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// startPlatformAPI runs `atoll platform` with the keys of a home and further arguments, for the region test-1. There
// are no other services.
func startPlatformAPI(t *testing.T, home, dsn string, args ...string) *testsite.Site {
	t.Helper()
	site := testsite.New(t)
	certificate, key := site.CertificatePEM(pki.ServiceName("platform"))
	for name, content := range map[string][]byte{"identity.pem": append(key, certificate...), "ca.pem": site.CA.CertPEM(),
		"dsn": []byte(dsn)} {
		if err := os.WriteFile(filepath.Join(home, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = "127.0.0.1:1"
	cmd := services.Platform()
	cmd.SetArgs(append([]string{"--region", "test-1", "--log-level", "error", "--dsn-file", filepath.Join(home, "dsn"),
		"--seal-key", filepath.Join(home, "seal.key"), "--identity", home, "--ca", filepath.Join(home, "ca.pem"), "--pki",
		"https://" + nobody, "--maestro-http", "https://" + nobody, "--maestro-grpc", nobody}, args...))
	testsite.Run(t, "the Platform API", cmd.ExecuteContext)
	return site
}

// atoll platform --operator-listen serves the routes of operators on the second address only, and to the
// operator everything else on both. Both addresses speak TLS 1.2, too.
func TestThePlatformAPIHasAListenerForOperatorsI10(t *testing.T) {
	home, dsn := t.TempDir(), pgtest.DSN(t)
	pair, secret, err := platformKeysIn(t, home, dsn).Create(t.Context(), "000000000000", regionOperator)
	if err != nil {
		t.Fatal(err)
	}
	listen, operatorListen := testsite.FreeAddress(t), testsite.FreeAddress(t)
	site := startPlatformAPI(t, home, dsn, "--listen", listen, "--operator-listen", operatorListen)
	speaks := func(version uint16) *http.Transport {
		return &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{MinVersion: version, MaxVersion: version,
			RootCAs: site.CA.Pool(), ServerName: "platform"}}
	}
	transport, oldTransport := speaks(tls.VersionTLS13), speaks(tls.VersionTLS12)
	defer transport.CloseIdleConnections()
	defer oldTransport.CloseIdleConnections()
	ask := func(transport *http.Transport, address, path string) (status int, code string, err error) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+address+"/api/v0"+path, nil)
		if err != nil {
			return 0, "", err
		}
		creds := client.Credentials{AccessKeyID: pair.AccessKeyID, SecretAccessKey: secret, Region: "test-1"}
		if err := client.Sign(r, nil, creds, time.Now()); err != nil {
			return 0, "", err
		}
		w, err := transport.RoundTrip(r)
		if err != nil {
			return 0, "", err
		}
		defer w.Body.Close()
		if w.ProtoMajor != 2 {
			return 0, "", fmt.Errorf("the protocol is %s", w.Proto)
		}
		var answer struct{ Code string }
		err = json.NewDecoder(w.Body).Decode(&answer)
		return w.StatusCode, answer.Code, err
	}
	for _, tc := range []struct {
		address, path string
		status        int
		code          string
	}{
		{listen, "/whoami", http.StatusOK, ""},
		{operatorListen, "/whoami", http.StatusOK, ""},
		{operatorListen, "/accounts", http.StatusOK, ""},
		{listen, "/accounts", http.StatusNotFound, "not-found"},
		{operatorListen, "/authz/policies", http.StatusOK, ""},
		{listen, "/authz/policies", http.StatusOK, ""},
		{operatorListen, "/authz/policies?accountId=000000000000", http.StatusOK, ""},
		{listen, "/authz/policies?accountId=000000000000", http.StatusNotFound, "not-found"},
	} {
		var status int
		var code string
		testsite.Eventually(t, "an answer of the Platform API", func() error { // it starts, and reads keys and policies
			var err error
			if status, code, err = ask(transport, tc.address, tc.path); err == nil && status == http.StatusServiceUnavailable {
				err = http.ErrServerClosed
			}
			return err
		})
		if status != tc.status || code != tc.code {
			t.Errorf("%s of %s: %d %s, want %d %s", tc.path, map[string]string{listen: "--listen",
				operatorListen: "--operator-listen"}[tc.address], status, code, tc.status, tc.code)
		}
		if status, code, err := ask(oldTransport, tc.address, tc.path); status != tc.status || code != tc.code || err != nil {
			t.Errorf("%s by TLS 1.2: %d %s %v, want %d %s", tc.path, status, code, err, tc.status, tc.code)
		}
	}
}
