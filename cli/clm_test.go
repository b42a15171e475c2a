package cli

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/internal/pgtest"
	"atoll.dev/local"
	"atoll.dev/test/testsite"
)

// startCLM runs `atoll clm` with arguments built from two free addresses, the API's and the health
// port's, and returns when it is ready.
func startCLM(t *testing.T, args func(api, ops string) []string) (base, ops string) {
	t.Helper()
	for range 5 { // another process may take a port first
		addrs := freeAddrs(t, 2)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		root := newRoot(&terminal.Session{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
		root.SetArgs(append([]string{"clm", "serve", "--log-level", "error"}, args(addrs[0], addrs[1])...))
		go func() { ended <- root.ExecuteContext(ctx) }()
		if err := ready("http://"+addrs[1], ended); errors.Is(err, syscall.EADDRINUSE) {
			stop()
			continue
		} else if err != nil {
			stop()
			t.Fatal(err)
		}
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Errorf("it ended: %v", err)
			}
			http.DefaultClient.CloseIdleConnections()
		})
		return "http://" + addrs[0], "http://" + addrs[1]
	}
	t.Fatal("no free port")
	return "", ""
}

func freeAddrs(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l := testsite.Listen(t)
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// ready waits until a service is ready, or has ended.
func ready(ops string, ended <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(testsite.HangLimit); ; {
		res, err := http.Get(ops + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended before it was ready: %w", err)
		case <-deadline:
			return fmt.Errorf("not ready within %s", testsite.HangLimit)
		case <-tick.C:
		}
	}
}

// ask sends a request and decodes the answer.
func ask(t *testing.T, method, url, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s %s: %d %s", method, url, res.StatusCode, data)
	}
	return res.StatusCode, v
}

func TestCLMServesItsAPI(t *testing.T) {
	dsn := pgtest.DSN(t)
	base, ops := startCLM(t, func(api, ops string) []string {
		return []string{"--dsn", dsn, "--insecure-listen", api,
			"--ops", ops}
	})
	if status, v := ask(t, "GET", ops+"/healthz", ""); status != 200 || fmt.Sprint(v) != "map[status:ok]" {
		t.Errorf("/healthz: %d %v", status, v)
	}
	if status, v := ask(t, "GET", ops+"/readyz", ""); status != 200 || fmt.Sprint(v) != "map[status:ok]" {
		t.Errorf("/readyz: %d %v", status, v)
	}
	if status, v := ask(t, "GET", base+"/api/hyperfleet", ""); status != 200 || v["version"] != terminal.Version {
		t.Errorf("metadata: %d %v", status, v)
	}
	status, made := ask(t, "POST", base+"/api/hyperfleet/v1/clusters", `{"kind":"Cluster","name":"abc","spec":{}}`)
	if status != 201 || made["created_by"] != "system@hyperfleet.local" {
		t.Fatalf("create: %d %v", status, made)
	}
	if status, v := ask(t, "GET", base+made["href"].(string), ""); status != 200 || v["name"] != "abc" {
		t.Errorf("get: %d %v", status, v)
	}
}

// A region's lifecycle manager keeps accounts apart.
func TestCLMOfARegionHasTenants(t *testing.T) {
	dsn := pgtest.DSN(t)
	file := filepath.Join(t.TempDir(), "clm.yaml")
	if err := os.WriteFile(file, []byte(local.CLMConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	base, _ := startCLM(t, func(api, ops string) []string {
		return []string{"--config", file, "--dsn", dsn, "--http", api, "--ops", ops}
	})
	const clusters = "/api/hyperfleet/v1/clusters"
	status, made := ask(t, "POST", base+clusters, `{"kind":"Cluster","name":"abc","spec":{}}`,
		clmclient.TenantHeader+": 111111111111")
	if status != 201 || fmt.Sprint(made["tenancy"]) != "map[account:111111111111]" {
		t.Fatalf("create: %d %v", status, made)
	}
	for account, want := range map[string]int{"111111111111": 200, "222222222222": 404} {
		if status, _ := ask(t, "GET", base+made["href"].(string), "", clmclient.TenantHeader+": "+
			account); status != want {
			t.Errorf("get by account %s: %d, want %d", account, status, want)
		}
	}
	// Their lists need not look at the others' clusters.
	db, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	var index bool
	if err := db.QueryRow(t.Context(), `select to_regclass('"document_Cluster_tenants"') is not null`).Scan(
		&index); err != nil || !index {
		t.Errorf("there is no index of tenants' clusters: %v", err)
	}
}

// The configuration of a typical hyperfleet-api: one file, secrets in files, and callers with
// tokens.
func TestCLMReadsHyperFleetsConfiguration(t *testing.T) {
	dsn, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	put := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	keys := put("keys.json", fmt.Sprintf(`{"keys":[{"kty":"RSA","kid":"k1","n":%q,"e":%q}]}`, encode(key.N.Bytes()),
		encode(big.NewInt(int64(key.E)).Bytes())))
	schemas := put("openapi.yaml",
		"openapi: 3.0.3\ninfo: {title: specs, version: v1}\npaths: {}\ncomponents: {schemas: {ClusterSpec: {type: "+
			"object, properties: {nodes: {type: integer}}}}}\n")
	t.Setenv("HYPERFLEET_DATABASE_NAME_FILE", put("name", dsn.Database+"\n"))
	base, _ := startCLM(t, func(api, ops string) []string {
		host, port, _ := net.SplitHostPort(api)
		_, health, _ := net.SplitHostPort(ops)
		return []string{"--server-port", port, "--config", put("config.yaml", fmt.Sprintf(`
server:
  host: %s
  port: 1
  openapi_schema_path: %s
  jwt: {enabled: true, configs: [{issuer_url: "https://sso.example.com", jwk_cert_file: %s}]}
database: {host: %q, port: %d, username: %s}
health: {port: %s}
metrics: {port: %s}
entities:
- {kind: Cluster, plural: clusters, spec_schema_name: ClusterSpec, require_spec_schema: true}
`, host, schemas, keys, dsn.Host, dsn.Port, dsn.User, health, strings.TrimPrefix(freeAddrs(t, 1)[0], "127.0.0.1:")))}
	})
	const clusters = "/api/hyperfleet/v1/clusters"
	body := `{"kind":"Cluster","name":"abc","spec":{"nodes":3}}`
	if status, v := ask(t, "POST", base+clusters, body); status != 401 || v["code"] != "HYPERFLEET-AUT-001" {
		t.Errorf("without a token: %d %v", status, v)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"iss": "https://sso.example.com",
		"email": "a@b.example", "exp": time.Now().Add(time.Hour).Unix()})
	token.Header["kid"] = "k1"
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	if status, v := ask(t, "POST", base+clusters, body, "Authorization: Bearer "+signed); status != 201 ||
		v["created_by"] != "a@b.example" {
		t.Errorf("with one: %d %v", status, v)
	}
	if status, v := ask(t, "POST", base+clusters, strings.Replace(body, "3", `"three"`, 1), "Authorization: Bearer "+
		signed); status != 400 || v["code"] != "HYPERFLEET-VAL-000" {
		t.Errorf("a spec that the schema refuses: %d %v", status, v)
	}
	if status, _ := ask(t, "GET", base+"/api/hyperfleet/v1/nodepools", "", "Authorization: Bearer "+
		signed); status != 404 {
		t.Errorf("a kind that is not configured: %d", status)
	}
}
