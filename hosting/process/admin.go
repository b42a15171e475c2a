package process

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/beneath"
	"atoll.dev/plane"
)

// Client returns the kubeconfig of a serving plane's administrator, its server name
// and its version. It makes no connection. For a plane that does not serve, the error
// is controlplane.ErrNotServing.
func (r *Runtime) Client(id controlplane.ID) (controlplane.Admin, error) {
	x := r.find(id)
	if x == nil {
		return controlplane.Admin{}, fmt.Errorf("plane %s: %w", id, controlplane.ErrNotServing)
	}
	o := x.observation()
	if o.State != controlplane.Ready {
		return controlplane.Admin{}, fmt.Errorf("plane %s is %s: %w", id, o.State, controlplane.ErrNotServing)
	}
	admin, err := AdminOf(plane.Config{Name: x.currentGoal().spec.Name, Dir: x.dir, Address: o.Backend,
		ExternalHosts: o.LastStart.ServerNames})
	if err != nil {
		return controlplane.Admin{}, fmt.Errorf("plane %s: %w", id, err)
	}
	return admin, nil
}

// AdminOf reads the administrator's kubeconfig and the version of a plane from its
// data directory. The plane must have been ready once.
func AdminOf(config plane.Config) (controlplane.Admin, error) {
	kubeconfig, err := config.Kubeconfig()
	if err != nil {
		return controlplane.Admin{}, err
	}
	readiness, err := config.Readiness()
	if err != nil {
		return controlplane.Admin{}, err
	}
	admin := controlplane.Admin{
		Kubeconfig: kubeconfig, Version: controlplane.Version(strings.TrimPrefix(readiness.Version, "v")),
	}
	if len(config.ExternalHosts) > 0 {
		admin.ServerName = config.ExternalHosts[0]
	}
	return admin, nil
}

// clockTolerance is how long before its signing a certificate is valid, so that
// hosts with slow clocks accept it.
const clockTolerance = 5 * time.Minute

// Sign signs a client certificate with the plane's authority. It needs the
// plane's data; the plane need not run.
func (r *Runtime) Sign(id controlplane.ID, request controlplane.CertificateRequest) (controlplane.Certificate, error) {
	certificate, err := Sign(r.home.plane(id), request, time.Now())
	if err != nil {
		return controlplane.Certificate{}, fmt.Errorf("plane %s: %w", id, err)
	}
	return certificate, nil
}

// Sign signs a client certificate with the authority in a plane's data directory.
func Sign(dir string, request controlplane.CertificateRequest, now time.Time) (controlplane.Certificate, error) {
	a, err := readAuthority(dir)
	if err != nil {
		return controlplane.Certificate{}, err
	}
	certificate, err := a.sign(request, now)
	if err != nil {
		return controlplane.Certificate{}, fmt.Errorf("signing a certificate: %w", err)
	}
	trusted, err := readTrusted(dir, a.pem)
	if err != nil {
		return controlplane.Certificate{}, fmt.Errorf("the plane's earlier authorities: %w", err)
	}
	return controlplane.Certificate{PEM: certificate, CAPEM: trusted}, nil
}

// authority is a plane's certificate authority: pki/ca.crt and pki/ca.key below
// its data directory, ECDSA P-256; package kube/credentials writes them.
type authority struct {
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

const authorityLimit = 64 << 10 // bytes of a file

// readAuthority reads the files without following links: the plane wrote them.
func readAuthority(dir string) (authority, error) {
	var a authority
	var err error
	if a.pem, err = beneath.Read(dir, "pki/ca.crt", authorityLimit); err != nil {
		return authority{}, fmt.Errorf("the plane's authority: %w", err)
	}
	block, _ := pem.Decode(a.pem)
	if block == nil || block.Type != "CERTIFICATE" {
		return authority{}, fmt.Errorf("the plane's authority in %s is no certificate", dir)
	}
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return authority{}, fmt.Errorf("the plane's authority in %s: %w", dir, err)
	}
	content, err := beneath.Read(dir, "pki/ca.key", authorityLimit)
	if err != nil {
		return authority{}, fmt.Errorf("the plane's authority: %w", err)
	}
	// Errors never contain the content: it is a key.
	if block, _ = pem.Decode(content); block == nil || block.Type != "EC PRIVATE KEY" {
		return authority{}, fmt.Errorf("ca.key of the plane's authority in %s is no EC private key", dir)
	}
	if a.key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
		return authority{}, fmt.Errorf("the key of the plane's authority in %s cannot be read", dir)
	}
	if !a.key.PublicKey.Equal(a.cert.PublicKey) { // between two files of a rotation; the plane does not run then
		return authority{}, fmt.Errorf("ca.key of the plane's authority in %s does not belong to its certificate", dir)
	}
	return a, nil
}

// sign returns a client certificate as PEM. It never outlives the authority.
func (a authority) sign(r controlplane.CertificateRequest, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	expires := r.Expires
	if expires.After(a.cert.NotAfter) {
		expires = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{CommonName: r.CommonName, Organization: []string{r.Organization}},
		NotBefore:             now.Add(-clockTolerance),
		NotAfter:              expires,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, a.cert, r.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
