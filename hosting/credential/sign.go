package credential

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
)

// backdate tolerates clocks that are a little behind.
const backdate = 5 * time.Minute

// authority is what a plane signs with: pki/ca.crt and pki/ca.key below its
// data directory, ECDSA P-256, see kube/credentials.
type authority struct {
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func readAuthority(dir string) (authority, error) {
	var a authority
	var err error
	if a.pem, err = os.ReadFile(filepath.Join(dir, "pki", "ca.crt")); err != nil {
		return authority{}, fmt.Errorf("the plane's authority: %w", err)
	}
	block, _ := pem.Decode(a.pem)
	if block == nil || block.Type != "CERTIFICATE" {
		return authority{}, fmt.Errorf("the plane's authority in %s is no certificate", dir)
	}
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return authority{}, fmt.Errorf("the plane's authority in %s: %w", dir, err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "pki", "ca.key"))
	if err != nil {
		return authority{}, fmt.Errorf("the plane's authority: %w", err)
	}
	if block, _ = pem.Decode(content); block == nil || block.Type != "EC PRIVATE KEY" {
		return authority{}, fmt.Errorf("the key of the plane's authority in %s is none", dir)
	}
	if a.key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
		return authority{}, fmt.Errorf("the key of the plane's authority in %s cannot be read", dir)
	}
	return a, nil
}

// sign returns the certificate as PEM.
func (a authority) sign(w wanted, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	expires := w.expires
	if expires.After(a.cert.NotAfter) {
		expires = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{CommonName: w.username, Organization: []string{w.group}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              expires,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, a.cert, w.key, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing a credential: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// issued says whether the status holds the certificate that is wanted.
func issued(c *apihosting.Credential, w wanted) bool {
	if !meta.IsStatusConditionTrue(c.Status.Conditions, apihosting.Issued) {
		return false
	}
	block, _ := pem.Decode([]byte(c.Status.Certificate))
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false
	}
	want, err := x509.MarshalPKIXPublicKey(w.key)
	return err == nil && bytes.Equal(cert.RawSubjectPublicKeyInfo, want) &&
		cert.Subject.CommonName == w.username && slices.Equal(cert.Subject.Organization, []string{w.group}) &&
		!cert.NotAfter.After(w.expires)
}

func endpointURL(e hypershift.APIEndpoint) string {
	return "https://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}
