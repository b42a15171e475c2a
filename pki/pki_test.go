package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/rest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func openCA(t *testing.T) *CA {
	t.Helper()
	return openCAIn(t, filepath.Join(t.TempDir(), "ca"))
}

func openCAIn(t *testing.T, dir string) *CA {
	t.Helper()
	ca, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func parseCert(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	b, _ := pem.Decode(data)
	if b == nil {
		t.Fatalf("no PEM: %q", data)
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheCAIsCreatedOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	certs := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range certs {
		wg.Go(func() {
			ca, err := OpenCA(dir)
			if err != nil {
				t.Error(err)
				return
			}
			certs[i] = ca.CertPEM()
		})
	}
	wg.Wait()
	for _, c := range certs {
		if !bytes.Equal(c, certs[0]) {
			t.Fatal("eight concurrent callers of OpenCA have different CAs")
		}
	}
	info, err := os.Stat(filepath.Join(dir, caFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v %v", info.Mode(), err)
	}
}

func TestADamagedCAIsNamedInTheError(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"empty":     func([]byte) []byte { return nil },
		"cut":       func(b []byte) []byte { return b[:len(b)/2] },
		"garbage":   func(b []byte) []byte { return append(b, "garbage"...) },
		"key alone": func(b []byte) []byte { return b[:bytes.Index(b, []byte("-----BEGIN CERT"))] },
	} {
		t.Run(name, func(t *testing.T) {
			ca := openCA(t)
			path := filepath.Join(ca.dir, caFile)
			data, _ := os.ReadFile(path)
			if err := os.WriteFile(path, damage(data), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenCA(ca.dir); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v does not name %s", err, path)
			}
		})
	}
}

// The signer sets subject, names and usages, and ignores those of the request.
func TestTheSignerSetsAllFieldsExceptTheKey(t *testing.T) {
	ca := openCA(t)
	key, _ := newKey()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "system:maestro", Organization: []string{"system:masters"}},
		DNSNames:    []string{"evil.example"},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01,
			0x01, 0xff}}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), "management-01")
	if err != nil {
		t.Fatal(err)
	}
	c := parseCert(t, signed)
	if c.Subject.CommonName != "management-01" || len(c.Subject.Organization) > 0 || len(c.DNSNames) > 0 ||
		len(c.IPAddresses) > 0 || c.IsCA {
		t.Errorf("certificate: subject %v, names %v %v, CA %v", c.Subject, c.DNSNames, c.IPAddresses, c.IsCA)
	}
	if len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("an agent's certificate may be used as %v", c.ExtKeyUsage)
	}
	if life := time.Until(c.NotAfter); life > DefaultValidity || life < DefaultValidity-time.Hour {
		t.Errorf("it is good for %s", life)
	}
}

func TestOnlyP256KeysAreSigned(t *testing.T) {
	ca := openCA(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	for name, key := range map[string]any{"RSA": rsaKey, "P-384": p384} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), "management-01"); !errors.Is(
			err, ErrWeakKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[Name]bool{
		"management-01": true, "a": true, "system:maestro": true, "system:": false, "System:maestro": false,
		"": false, "a.b": false, "-a": false, "a-": false, "A": false, "a b": false, "system:a:b": false, "+": false,
		"#":                           false,
		Name(strings.Repeat("a", 63)): true, Name(strings.Repeat("a", 64)): false, "system:localhost": false,
	} {
		if got := name.Validate() == nil; got != want {
			t.Errorf("Validate(%q) = %v", name, got)
		}
	}
	if CheckConsumer("system:maestro") == nil {
		t.Error("a consumer may be called like a service")
	}
}

func TestAJoinTokenIsValidForOneKey(t *testing.T) {
	ca := openCA(t)
	token, err := ca.CreateToken("management-01", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			name, err := ca.redeem(token, string(rune('a'+i)), "")
			switch {
			case err == nil && name == "management-01":
				won.Add(1)
			case !errors.Is(err, ErrTokenUsed):
				t.Errorf("redeem: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 16 keys redeemed it", won.Load())
	}
	if _, err := ca.redeem("nonsense", "a", ""); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("an unknown token: %v", err)
	}
	short, err := ca.CreateToken("management-02", time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.redeem(short, "a", ""); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("an expired token: %v", err)
	}
	entries, _ := os.ReadDir(filepath.Join(ca.dir, tokenDir))
	for _, e := range entries {
		data, _ := os.ReadFile(filepath.Join(ca.dir, tokenDir, e.Name()))
		if strings.Contains(e.Name()+string(data), token) {
			t.Errorf("the token's text is at rest in %s", e.Name())
		}
	}
}

// serveCA runs the signing service and returns its URL.
func serveCA(t *testing.T, ca *CA) string {
	t.Helper()
	s := NewServer(ca)
	return serve(t, s, s.Handler(slog.New(slog.DiscardHandler)))
}

// serve runs h with the signing service's certificate.
func serve(t *testing.T, s *Server, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- (&rest.Server{Name: "pki", Handler: h, TLS: s.TLS(), Log: slog.New(slog.DiscardHandler)}).Run(ctx, l)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "https://" + l.Addr().String()
}

func TestTheSigningServiceRefusesBadRequests(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	key, _ := newKey()
	csr, _ := encodeCSR(key, "")
	forged, _ := encodeCSR(key, "system:maestro")
	token, err := ca.CreateToken("management-01", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	body := func(r SignRequest) string { data, _ := json.Marshal(r); return string(data) }
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(),
		ServerName: "pki"}, DisableKeepAlives: true}}
	for _, c := range []struct {
		name, body string
		status     int
		code       string
	}{
		{"no JSON", "hello", 400, "invalid-request"},
		{"no request", body(SignRequest{Token: token}), 400, "invalid-csr"},
		{"a certificate instead", body(SignRequest{CSR: string(ca.CertPEM()), Token: token}), 400, "invalid-csr"},
		{"no identity", body(SignRequest{CSR: string(csr)}), 401, "no-identity"},
		{"an unknown token", body(SignRequest{CSR: string(csr), Token: "x"}), 403, "invalid-token"},
		{"another's name", body(SignRequest{CSR: string(forged), Token: token}), 403, "wrong-name"},
		{"too much", strings.Repeat("x", maxSignBody+1), 413, ""},
	} {
		resp, err := client.Post(url+"/v1/sign", "application/json", strings.NewReader(c.body))
		if c.status == http.StatusRequestEntityTooLarge && (errors.Is(err, syscall.ECONNRESET) || errors.Is(
			err, syscall.EPIPE)) {
			continue // the answer came, and the connection ended, before all was sent
		}
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(data), c.code) {
			t.Errorf("%s: %d %s", c.name, resp.StatusCode, data)
		}
	}
	// The token was not used up by the requests that failed.
	resp, err := client.Post(url+"/v1/sign", "application/json", strings.NewReader(
		body(SignRequest{CSR: string(csr), Token: token})))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer SignResponse
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Identity != "management-01" {
		t.Errorf("the right request: %d %+v %v", resp.StatusCode, answer, err)
	}
	if c := parseCert(t, []byte(answer.Certificate)); c.Subject.CommonName != "management-01" {
		t.Errorf("a request without a name got %q", c.Subject.CommonName)
	}
}

func FuzzParseSignRequest(f *testing.F) {
	key, _ := newKey()
	csr, _ := encodeCSR(key, "management-01")
	good, _ := json.Marshal(SignRequest{CSR: string(csr), Token: "t"})
	f.Add(good)
	f.Add([]byte(`{"csr":"-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		_, csr, err := parseSignRequest(body)
		if err == nil && csr.PublicKey.(*ecdsa.PublicKey).Curve != elliptic.P256() {
			t.Error("a key that is not P-256 was taken")
		}
	})
}
