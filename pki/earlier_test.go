package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// earlierRegion is the files of a region as an atoll without issuing CAs has written them. Their names and forms are
// written out here, because they must not change.
type earlierRegion struct {
	t    *testing.T
	dir  string // has ca/ and a directory for each identity
	key  *ecdsa.PrivateKey
	root *x509.Certificate
}

func newEarlierRegion(t *testing.T) *earlierRegion {
	t.Helper()
	r := &earlierRegion{t: t, dir: t.TempDir()}
	r.key, _ = newKey()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1 << 40),
		Subject:   pkix.Name{CommonName: "Atoll region CA abcdefgh", Organization: []string{"Atoll"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(20, 0, 0),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
		MaxPathLenZero: true}
	r.root = r.sign(tmpl, tmpl, r.key)
	r.write("ca/ca.pem", append(r.keyPEM(r.key), r.certPEM(r.root)...))
	r.write("ca/ca.crt", r.certPEM(r.root))
	return r
}

func (r *earlierRegion) sign(tmpl, by *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	r.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, by, &key.PublicKey, r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		r.t.Fatal(err)
	}
	return cert
}

func (r *earlierRegion) keyPEM(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		r.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (r *earlierRegion) certPEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func (r *earlierRegion) write(name string, data []byte) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *earlierRegion) read(name string) []byte {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return data
}

// enrol writes the identity of a name and the CA's record of it.
func (r *earlierRegion) enrol(name Name, serial int64) *x509.Certificate {
	r.t.Helper()
	key, _ := newKey()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial),
		Subject:   pkix.Name{CommonName: string(name), Organization: []string{"Atoll"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(6 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if name.IsService() {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		tmpl.DNSNames, tmpl.IPAddresses = []string{name.Service(), "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	cert := r.sign(tmpl, r.root, key)
	r.write(string(name)+"/identity.pem", append(r.keyPEM(key), r.certPEM(cert)...))
	r.write("ca/issued/"+string(name)+".json", fmt.Appendf(nil, `{"certificates":[%s]}`, r.record(cert, "")))
	return cert
}

// record returns the CA's record of a certificate, with more fields.
func (r *earlierRegion) record(cert *x509.Certificate, more string) string {
	spki, err := x509.MarshalPKIXPublicKey(cert.PublicKey)
	if err != nil {
		r.t.Fatal(err)
	}
	fingerprint, key := sha256.Sum256(cert.Raw), sha256.Sum256(spki)
	return fmt.Sprintf(`{"serial":%q,"fingerprint":%q,"key":%q,"expires":%q%s}`, cert.SerialNumber.Text(16),
		hex.EncodeToString(fingerprint[:]), hex.EncodeToString(key[:]), cert.NotAfter.UTC().Format(time.RFC3339), more)
}

// list writes a revocation list with a certificate for the CA and for a server.
func (r *earlierRegion) list(revoked *x509.Certificate, server Name) {
	r.t.Helper()
	now := time.Now()
	r.write("ca/revoked/"+revoked.Subject.CommonName+".json", fmt.Appendf(nil,
		`{"barred":true,"at":%[1]q,"certificates":[%[2]s]}`, now.UTC().Format(time.RFC3339),
		r.record(revoked, fmt.Sprintf(`,"at":%q`, now.UTC().Format(time.RFC3339)))))
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{ThisUpdate: now.Add(-time.Minute),
		NextUpdate: now.Add(24 * time.Hour), Number: big.NewInt(now.Add(-time.Minute).UnixMilli()),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: revoked.SerialNumber, RevocationTime: now}}},
		r.root, r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
	r.write("ca/crl.pem", text)
	r.write(string(server)+"/crl.pem", text)
}

// types returns the types of the PEM blocks of a file.
func (r *earlierRegion) types(name string) string {
	r.t.Helper()
	var types []string
	for b, rest := pem.Decode(r.read(name)); b != nil; b, rest = pem.Decode(rest) {
		types = append(types, b.Type)
	}
	return strings.Join(types, ", ")
}

// A region whose files an atoll without issuing CAs has written goes on: its root signs everything,
// nothing joins again, nothing that was revoked counts, and its files keep their form, so that the
// earlier atoll can read them again.
func TestARegionOfAnEarlierReleaseGoesOn(t *testing.T) {
	r := newEarlierRegion(t)
	r.enrol("system:broker", 1<<40+1)
	r.enrol("edge-7", 1<<40+2)
	r.list(r.enrol("edge-8", 1<<40+3), "system:broker")
	files := []string{"ca/ca.pem", "ca/ca.crt", "system:broker/identity.pem", "edge-7/identity.pem",
		"edge-8/identity.pem", "system:broker/crl.pem"}
	before := map[string][]byte{}
	for _, f := range files {
		before[f] = r.read(f)
	}

	ca, err := OpenCA(filepath.Join(r.dir, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	url := serveCA(t, ca)
	with := func(name Name) IdentityOptions {
		return IdentityOptions{Dir: filepath.Join(r.dir, string(name)), Name: name, URL: url, CAFile: ca.CertFile()}
	}
	server, agent, revoked := open(t, with("system:broker")), open(t, with("edge-7")), open(t, with("edge-8"))
	for _, f := range files {
		if !bytes.Equal(r.read(f), before[f]) {
			t.Errorf("the start has changed %s", f)
		}
	}
	meet := func(when string) {
		t.Helper()
		for name, id := range map[Name]*Identity{"edge-7": agent, "": revoked} {
			got, err := handshake(t, server.ServerTLS(CertificateRequired), id.ClientTLS("broker"))
			if got != name || (err == nil) != (name != "") {
				t.Errorf("%s: %q %v, want %q", when, got, err, name)
			}
		}
	}
	meet("with the certificates and the list of before")
	knowCRL(t, ca, server)
	meet("with a new list")
	if err := errors.Join(agent.Renew(t.Context()), server.Renew(t.Context())); err != nil {
		t.Fatal(err)
	}
	meet("after the renewal")
	if err := revoked.Renew(t.Context()); err == nil {
		t.Error("a revoked certificate is renewed")
	}
	for name, want := range map[string]string{"ca/ca.pem": "PRIVATE KEY, CERTIFICATE", "ca/crl.pem": "X509 CRL",
		"edge-7/identity.pem": "PRIVATE KEY, CERTIFICATE", "system:broker/crl.pem": "X509 CRL"} {
		if got := r.types(name); got != want {
			t.Errorf("%s has %s, want %s", name, got, want)
		}
	}

	if err := ca.Issue(IssueOptions{}); !errors.Is(err, errRootSigns) {
		t.Errorf("it makes issuing CAs: %v", err)
	}
	if err := ca.TakeRootKey("root", func([]byte) error { return nil }); !errors.Is(err, errRootSigns) {
		t.Errorf("its key is taken: %v", err)
	}
	if status, err := ca.Status(); err != nil || !status.Root.SignsAll || len(status.Warnings) > 0 {
		t.Errorf("%+v %v", status, err)
	}
	if err := NewServer(ca).Check(t.Context()); err != nil {
		t.Error(err)
	}
	// A CA that the root of before has certified against its path length proves nothing.
	sub, _ := newKey()
	below := issuer{role: Services, key: sub, cert: r.sign(&x509.Certificate{SerialNumber: big.NewInt(9),
		Subject:   pkix.Name{CommonName: "CA", OrganizationalUnit: []string{string(Services)}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true}, r.root, sub)}
	forged := forge(t, below, "system:clm", []*x509.Certificate{below.cert}, nil)
	if name, err := handshake(t, server.ServerTLS(CertificateRequired), client(ca, forged)); err == nil {
		t.Errorf("a chain below it proves %q", name)
	}
	if n := len(agent.current.Load().Certificate); n != 1 {
		t.Errorf("%d certificates are sent", n)
	}
}
