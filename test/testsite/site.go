// Package testsite gives a test what every part of a region needs before it can start: a certificate authority and
// identities, listeners, a broker, child processes that can be killed, a log that a failed test shows, and waiting.
//
// It imports no service, so that the tests inside of a service's own package can use it. Package testworld starts the
// services themselves on a site. Package localtest starts a whole region as processes.
//
// It is for tests only.
package testsite

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"atoll.dev/pki"
)

// Site is what the parts of one test share: a certificate authority and a log.
type Site struct {
	T   testing.TB
	CA  *pki.CA
	Log *slog.Logger // the test shows it if it fails

	mu         sync.Mutex
	identities map[pki.Name]identity
}

// identity is a certificate and its key, both in PEM, and the pair of them.
type identity struct {
	cert, key []byte
	pair      tls.Certificate
}

// New returns a site with a new certificate authority.
func New(t testing.TB) *Site {
	t.Helper()
	return NewIn(t, t.TempDir())
}

// NewIn returns a site whose certificate authority is in a directory, for a test whose commands read it there. It
// creates the authority if the directory has none.
func NewIn(t testing.TB, caDir string) *Site {
	t.Helper()
	ca, err := pki.OpenCA(caDir)
	if err != nil {
		t.Fatal(err)
	}
	return &Site{T: t, CA: ca, Log: Log(t), identities: map[pki.Name]identity{}}
}

// identity returns the identity of a name. Each name has one, which the first call creates.
func (s *Site) identity(name pki.Name) identity {
	s.T.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.identities[name]; ok {
		return id
	}
	id, err := s.enrol(name)
	if err != nil {
		s.T.Fatalf("a certificate for %s: %v", name, err)
	}
	s.identities[name] = id
	return id
}

// enrol creates a key and has the authority sign a certificate for it.
func (s *Site) enrol(name pki.Name) (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return identity{}, err
	}
	cert, err := s.CA.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}), name)
	if err != nil {
		return identity{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return identity{}, err
	}
	id := identity{cert: cert, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}
	id.pair, err = tls.X509KeyPair(id.cert, id.key)
	return id, err
}

// Certificate returns the certificate of a name with its key.
func (s *Site) Certificate(name pki.Name) tls.Certificate {
	s.T.Helper()
	return s.identity(name).pair
}

// CertificatePEM returns the certificate of a name and its key as PEM.
func (s *Site) CertificatePEM(name pki.Name) (cert, key []byte) {
	s.T.Helper()
	id := s.identity(name)
	return bytes.Clone(id.cert), bytes.Clone(id.key)
}

// ServerTLS returns the configuration with which a service of the region accepts connections. It requires a client
// certificate of the site's authority.
func (s *Site) ServerTLS(service string) *tls.Config {
	s.T.Helper()
	return serverTLS(s.Certificate(pki.ServiceName(service)), s.CA.Pool())
}

// ClientTLS returns the configuration with which name connects to a service of the region.
func (s *Site) ClientTLS(name pki.Name, service string) *tls.Config {
	s.T.Helper()
	return clientTLS(s.Certificate(name), s.CA.Pool(), service)
}

func serverTLS(own tls.Certificate, roots *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
}

func clientTLS(own tls.Certificate, roots *x509.CertPool, service string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: roots,
		ServerName: service}
}

// The files of writeIdentity.
const (
	pairFile = "pair.pem" // the certificate, then its key
	rootFile = "ca.pem"
)

// writeIdentity writes the identity of a name into a directory, for a child process. readIdentity reads it.
func (s *Site) writeIdentity(dir string, name pki.Name) {
	s.T.Helper()
	cert, key := s.CertificatePEM(name)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, pairFile), append(cert, key...), 0o600),
		os.WriteFile(filepath.Join(dir, rootFile), s.CA.CertPEM(), 0o600)); err != nil {
		s.T.Fatal(err)
	}
}

// Identity is what a child process read with readIdentity.
type Identity struct {
	pair  tls.Certificate
	roots *x509.CertPool
}

// readIdentity reads the identity that writeIdentity wrote into a directory.
func readIdentity(dir string) (Identity, error) {
	file := filepath.Join(dir, pairFile)
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return Identity{}, err
	}
	text, err := os.ReadFile(filepath.Join(dir, rootFile))
	if err != nil {
		return Identity{}, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return Identity{}, errors.New(rootFile + " has no certificate")
	}
	return Identity{pair, roots}, nil
}

// ServerTLS returns the configuration with which the process accepts connections.
func (id Identity) ServerTLS() *tls.Config { return serverTLS(id.pair, id.roots) }

// ClientTLS returns the configuration with which the process connects to a service.
func (id Identity) ClientTLS(service string) *tls.Config {
	return clientTLS(id.pair, id.roots, service)
}
