package credential

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/hosting/process"
)

func signers(t testing.TB) map[string]crypto.Signer {
	t.Helper()
	made := map[string]crypto.Signer{}
	for name, curve := range map[string]elliptic.Curve{"P-224": elliptic.P224(), "P-256": elliptic.P256(),
		"P-384": elliptic.P384()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		made[name] = key
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made["Ed25519"] = ed
	if made["RSA"], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	return made
}

func TestCertificateRequestsAreCheckedByTheirKey(t *testing.T) {
	for name, signer := range signers(t) {
		if _, err := parseRequest(requestOf(t, signer)); (err == nil) != (name != "P-224") {
			t.Errorf("%s: %v", name, err)
		}
	}
	key, good := request(t)
	got, err := parseRequest(strings.ReplaceAll(good, "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"))
	if err != nil || !key.PublicKey.Equal(got) {
		t.Errorf("what old OpenSSL writes: %v", err)
	}
	block, _ := pem.Decode([]byte(good))
	forged := bytes.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	for name, text := range map[string]string{
		"two requests":      good + good,
		"another kind":      strings.ReplaceAll(good, "CERTIFICATE REQUEST", "CERTIFICATE"),
		"too long":          good + strings.Repeat("\n", maxRequest),
		"a false signature": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: forged})),
		"cut": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST",
			Bytes: block.Bytes[:40]})),
	} {
		if _, err := parseRequest(text); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestUserNamesAreChecked(t *testing.T) {
	for name, good := range map[string]bool{
		"arn:aws:sts::111111111111:assumed-role/a/b": true, "Ünal": true,
		"": false, "system:admin": false, "System:Masters": false, "a\nb": false, "\xff": false,
		strings.Repeat("a", 513): false,
	} {
		if err := checkUsername(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// testAuthority is a directory with a plane's authority, as kube/credentials
// writes it.
func testAuthority(t testing.TB, notAfter time.Time) (dir string) {
	t.Helper()
	dir = t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"ca.crt": {Type: "CERTIFICATE", Bytes: der},
		"ca.key": {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, "pki", name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestACertificateEndsWithItsAuthority(t *testing.T) {
	end := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	dir := testAuthority(t, end)
	key, _ := request(t)
	w := order{key: &key.PublicKey, user: "u", group: "g", expires: end.Add(time.Hour)}
	signed, err := process.Sign(dir, w.certificate(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(signed.PEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !cert.NotAfter.Equal(end) {
		t.Errorf("it ends at %s, its authority at %s, %v", cert.NotAfter, end, err)
	}
}

// An accepted request can be signed, and the certificate takes only the key from the request.
func FuzzRequest(f *testing.F) {
	for _, signer := range signers(f) {
		f.Add(requestOf(f, signer))
	}
	f.Add("")
	f.Add("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n")
	dir := testAuthority(f, time.Now().Add(48*time.Hour))
	f.Fuzz(func(t *testing.T, text string) {
		c := &apihosting.Credential{
			ObjectMeta: metav1.ObjectMeta{Name: apihosting.CredentialName("id"), CreationTimestamp: metav1.Now()},
			Spec:       apihosting.CredentialSpec{ID: "id", Request: text, ExpirationSeconds: 60, Username: "ann"},
		}
		w, err := parseCredential(c, time.Hour)
		if err != nil {
			return
		}
		signed, err := process.Sign(dir, w.certificate(), time.Now())
		if err != nil {
			t.Fatalf("taken, but not signed: %v", err)
		}
		block, _ := pem.Decode(signed.PEM)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := cert.Subject.String(); got != "CN=atoll:credential:id,O=atoll:credential:id" || len(cert.DNSNames)+
			len(cert.IPAddresses)+len(cert.URIs)+len(cert.EmailAddresses) > 0 {
			t.Errorf("the certificate says %q", got)
		}
		if key, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(w.key) {
			t.Error("the certificate has another key")
		}
	})
}

// Hosting checks the role and the lifetime itself: the region and the schema of the CRD may be older or changed.
func TestOrdersBeyondTheLimitsAreRefused(t *testing.T) {
	_, request := request(t)
	for name, c := range map[string]struct {
		change func(*apihosting.CredentialSpec)
		good   bool
	}{
		"as it is":          {func(*apihosting.CredentialSpec) {}, true},
		"the whole limit":   {func(s *apihosting.CredentialSpec) { s.ExpirationSeconds = 3600 }, true},
		"over the limit":    {func(s *apihosting.CredentialSpec) { s.ExpirationSeconds = 3601 }, false},
		"an overflow":       {func(s *apihosting.CredentialSpec) { s.ExpirationSeconds = 1 << 62 }, false},
		"view":              {func(s *apihosting.CredentialSpec) { s.Role = "view" }, true},
		"another role":      {func(s *apihosting.CredentialSpec) { s.Role = "cluster-admin" }, false},
		"a role in capital": {func(s *apihosting.CredentialSpec) { s.Role = "View" }, false},
		"a system role":     {func(s *apihosting.CredentialSpec) { s.Role = "system:masters" }, false},
	} {
		spec := apihosting.CredentialSpec{ID: "id", Request: request, ExpirationSeconds: 60, Username: "ann"}
		c.change(&spec)
		_, err := parseCredential(&apihosting.Credential{ObjectMeta: metav1.ObjectMeta{Name: apihosting.CredentialName("id"),
			CreationTimestamp: metav1.Now()}, Spec: spec}, time.Hour)
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Certificates that an earlier hosting signed, with the principal as the user, are not signed again.
func TestCertificatesOfEarlierVersionsStay(t *testing.T) {
	dir := testAuthority(t, time.Now().Add(time.Hour))
	key, request := request(t)
	c := &apihosting.Credential{ObjectMeta: metav1.ObjectMeta{Name: apihosting.CredentialName("id"),
		CreationTimestamp: metav1.Now()}, Spec: apihosting.CredentialSpec{ID: "id", Request: request,
		ExpirationSeconds: 600, Username: "ann"}}
	w, err := parseCredential(c, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Conditions = []metav1.Condition{{Type: apihosting.Issued, Status: metav1.ConditionTrue}}
	for user, stays := range map[string]bool{"ann": true, w.user: true, "bob": false, "": false} {
		old := w.certificate()
		old.PublicKey, old.CommonName = &key.PublicKey, user
		signed, err := process.Sign(dir, old, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if c.Status.Certificate = string(signed.PEM); isIssued(c, w) != stays {
			t.Errorf("the certificate of %q: issued is %t, want %t", user, !stays, stays)
		}
	}
}
