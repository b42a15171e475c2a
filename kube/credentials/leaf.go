package credentials

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"
)

// leaf describes a certificate that an authority signs. Certificate, the authority's cross certificates and
// key lie in one file, so that one rename replaces all and a crash cannot leave a pair that does not match.
type leaf struct {
	name   string   // common name
	groups []string // organizations: a client's Kubernetes groups
	server bool     // serving certificate; otherwise a client's
	hosts  []string // names and addresses of a serving certificate
}

// ensure leaves in path a certificate of ca that matches l and is good for a while, and returns the file's content.
func (l leaf) ensure(path string, ca *authority, now time.Time) ([]byte, error) {
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		cert, err := parseCertificate(content)
		if err != nil {
			return nil, damaged(path, err)
		}
		key, err := parseKey(content)
		if err != nil {
			return nil, damaged(path, err)
		}
		certificates, _ := splitPair(content)
		chain := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), ca.cross...)
		if key.PublicKey.Equal(cert.PublicKey) && bytes.Equal(certificates, chain) && l.matches(cert, ca, now) {
			return content, nil
		}
	}
	content, err = l.issue(ca, now)
	if err != nil {
		return nil, fmt.Errorf("signing %s: %w", path, err)
	}
	return content, WriteFile(path, content, 0o600)
}

// matches reports whether cert is what issue would make now, and not near its end.
func (l leaf) matches(cert *x509.Certificate, ca *authority, now time.Time) bool {
	names, addresses := l.split()
	return cert.CheckSignatureFrom(ca.cert) == nil &&
		now.Add(leafRenew).Before(cert.NotAfter) && !now.Before(cert.NotBefore) &&
		cert.Subject.CommonName == l.name &&
		slices.Equal(cert.Subject.Organization, l.groups) &&
		slices.Equal(cert.DNSNames, names) &&
		slices.EqualFunc(cert.IPAddresses, addresses, net.IP.Equal)
}

func (l leaf) issue(ca *authority, now time.Time) ([]byte, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: l.name, Organization: l.groups},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(leafLife),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if l.server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.DNSNames, template.IPAddresses = l.split()
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), ca.cross, keyPEM), nil
}

// split divides hosts into DNS names and addresses.
func (l leaf) split() (names []string, addresses []net.IP) {
	for _, host := range l.hosts {
		if ip := net.ParseIP(host); ip != nil {
			addresses = append(addresses, ip)
			continue
		}
		names = append(names, host)
	}
	return names, addresses
}
