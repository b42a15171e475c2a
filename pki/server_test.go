package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// post sends a request to sign, with a client certificate unless id is nil.
func post(t *testing.T, url string, ca *CA, id *Identity, req SignRequest) (int, string) {
	t.Helper()
	config := &tls.Config{RootCAs: ca.Pool(), ServerName: "pki"}
	if id != nil {
		config.GetClientCertificate = id.ClientTLS("pki").GetClientCertificate
	}
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	resp, err := client.Post(url+"/v1/sign", "application/json", strings.NewReader(string(body)))
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// confirm confirms the present certificate of an identity.
func confirm(t *testing.T, id *Identity) error {
	t.Helper()
	_, err := id.confirm(t.Context())
	return err
}

// A client with a certificate can renew that name only, regardless of the request's
// subject.
func TestI7ARenewalKeepsTheIdentity(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	id, err := OpenIdentity(t.Context(), options(t, ca, url, "management-01"))
	if err != nil {
		t.Fatal(err)
	}
	key, _ := newKey()
	forged, _ := encodeCSR(key, "system:maestro")
	if status, body := post(t, url, ca, id, SignRequest{CSR: string(forged)}); status != http.StatusForbidden ||
		!strings.Contains(body, "wrong-name") {
		t.Errorf("a request for another name: %d %s", status, body)
	}
	// A request may want more than a name.
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:masters"}}, DNSNames: []string{"maestro", "localhost"},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01,
			0x01, 0xff}}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	status, body := post(t, url, ca, id, SignRequest{
		CSR: string(pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}))})
	var answer SignResponse
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s %v", status, body, err)
	}
	if c := parseCert(t, []byte(answer.Certificate)); c.Subject.String() != "CN=management-01" || len(c.DNSNames) > 0 ||
		c.IsCA || len(c.ExtKeyUsage) != 1 {
		t.Errorf("the certificate of management-01 became %v, %v, %v", c.Subject, c.DNSNames, c.ExtKeyUsage)
	}
}

func TestI7ACertificateOfAnotherRegionRenewsNothing(t *testing.T) {
	ca, other := openCA(t), openCA(t)
	url := serveCA(t, ca)
	stranger, err := OpenIdentity(t.Context(), options(t, other, serveCA(t, other), "management-01"))
	if err != nil {
		t.Fatal(err)
	}
	key, _ := newKey()
	csr, _ := encodeCSR(key, "management-01")
	if status, body := post(t, url, ca, stranger, SignRequest{CSR: string(csr)}); status == http.StatusOK {
		t.Errorf("signed: %s", body)
	}
}

func TestARequestWithoutItsKeysSignatureIsRefused(t *testing.T) {
	ca := openCA(t)
	key, _ := newKey()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "x"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	der[len(der)-1] ^= 1 // its signature
	if _, err := ca.Sign(pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), "management-01"); err == nil {
		t.Error("signed a key that the asker does not have")
	}
	p521, _ := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	der, _ = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, p521)
	token, err := ca.CreateToken("management-01", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	csr := string(pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}))
	if status, body := post(t, serveCA(t, ca), ca, nil,
		SignRequest{CSR: csr, Token: token}); status != http.StatusBadRequest || !strings.Contains(body, "weak-key") {
		t.Errorf("%d %s", status, body)
	}
}

// An address with many failures is refused for a while; a client with a certificate never
// is.
func TestFailuresAreLimitedByAddress(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	id, err := OpenIdentity(t.Context(), options(t, ca, url, "management-01"))
	if err != nil {
		t.Fatal(err)
	}
	key, _ := newKey()
	csr, _ := encodeCSR(key, "management-01")
	limited := false
	for range 3 * failureBurst {
		status, body := post(t, url, ca, nil, SignRequest{CSR: string(csr), Token: "guess"})
		if limited = status == http.StatusTooManyRequests; limited {
			break
		}
		if status != http.StatusForbidden {
			t.Fatalf("%d %s", status, body)
		}
	}
	if !limited {
		t.Error("no request was refused")
	}
	if status, body := post(t, url, ca, id, SignRequest{CSR: string(csr)}); status != http.StatusOK {
		t.Errorf("a renewal: %d %s", status, body)
	}
}

func TestFailuresExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		for range failureBurst {
			f.add("192.0.2.1:1")
		}
		if f.allow("192.0.2.1:2") || !f.allow("192.0.2.2:1") {
			t.Error("the limit is not by address")
		}
		<-time.NewTimer(2 * failurePace).C
		if !f.allow("192.0.2.1:3") {
			t.Error("not forgotten")
		}
	})
}

func TestExpiredTokensAreSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		token, err := ca.CreateToken("management-01", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ca.redeem(token, "a", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := ca.redeem(token, "a", ""); err != nil {
			t.Errorf("the same key again: %v", err)
		}
		<-time.NewTimer(tokenKeep).C
		if _, err := ca.redeem(token, "a", ""); err != nil {
			t.Errorf("the same key, which did not get its answer: %v", err)
		}
		if _, err := ca.redeem(token, "b", ""); !errors.Is(err, ErrTokenUsed) {
			t.Errorf("another key: %v", err)
		}
		<-time.NewTimer(time.Minute).C
		if err := NewServer(ca).Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(filepath.Join(ca.dir, tokenDir))
		if err != nil || len(entries) > 0 {
			t.Errorf("left: %v %v", entries, err)
		}
	})
}
