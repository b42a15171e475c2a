package bus

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/pki"
)

// Whoever has copied the key of the agents' issuing CA is an agent at the broker, and no service.
func TestI7TheAgentsIssuingCAMakesNoServices(t *testing.T) {
	e := newTestRegion(t, 0)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(e.region.CertFile()), "issuing", "agents-*.pem"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the key of the agents' issuing CA: %v %v", files, err)
	}
	stolen, err := tls.LoadX509KeyPair(files[0], files[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[pki.Name]struct {
		clientID string
		admitted bool
	}{
		"c1":              {agentClientID("c1"), true},
		"system:maestro":  {"maestro", false},
		"system:clm":      {"clm", false},
		"system:operator": {"operator", false},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7),
			Subject:   pkix.Name{CommonName: string(name), OrganizationalUnit: []string{"services"}},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
			stolen.Leaf, &key.PublicKey, stolen.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		forged := tls.Certificate{Certificate: [][]byte{der, stolen.Leaf.Raw}, PrivateKey: key}
		config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: e.region.Pool(), ServerName: "broker",
			Certificates: []tls.Certificate{forged}}
		if _, err := e.attempt(t, config, c.clientID); (err == nil) != c.admitted {
			t.Errorf("%s: %v", name, err)
		}
	}
}
