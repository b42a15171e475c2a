package credentials

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"time"
)

const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityRenew = 2 * 365 * 24 * time.Hour // renewed with the same key when less than this is left
	leafLife       = 365 * 24 * time.Hour
	leafRenew      = 120 * 24 * time.Hour
	backdate       = time.Hour // tolerates clocks that are a little behind
)

// authority is a certificate authority whose certificate and key lie in two files: the certificate is published to
// everyone in the cluster, so that its file must not hold the key.
type authority struct {
	cert *x509.Certificate
	pem  []byte
	key  *ecdsa.PrivateKey
	// cross has certificates of this authority that earlier ones have signed, as PEM. Each certificate is sent with
	// them, so that whoever trusts only an earlier authority verifies it.
	cross []byte
}

// loadAuthority reads the authority from certFile and keyFile, or makes it. The key is written first:
// a key without a certificate is what a crash in between leaves, and the certificate is then made from
// it. A certificate without its key cannot come about by itself and is damage.
func loadAuthority(certFile, keyFile, name string, now time.Time) (*authority, error) {
	key, err := readKey(keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(certFile); err == nil {
			return nil, damaged(keyFile, errors.New("missing, while its certificate is there"))
		}
		if key, err = createKey(keyFile); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	a := &authority{key: key}
	content, err := os.ReadFile(certFile)
	if err == nil {
		a.pem = content
		if a.cert, err = parseCertificate(content); err != nil {
			return nil, damaged(certFile, err)
		}
		if !key.PublicKey.Equal(a.cert.PublicKey) {
			return nil, damaged(certFile, errors.New("does not belong to its key"))
		}
		if now.Add(authorityRenew).Before(a.cert.NotAfter) {
			return a, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: name},
		RawSubject:            a.subject(), // what it has signed names it so
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing %s: %w", certFile, err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, WriteFile(certFile, a.pem, 0o644)
}

// subject returns the encoded name of the present certificate; nil without one.
func (a *authority) subject() []byte {
	if a.cert == nil {
		return nil
	}
	return a.cert.RawSubject
}

// readEarlier reads the certificates that the first step of a rotation of the authority leaves, see Files.CAEarlier. It
// returns those of earlier authorities, and sets a.cross. Without the file there are none.
func (a *authority) readEarlier(file string) (roots []byte, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, damaged(file, err)
		}
		if bytes.Equal(cert.RawSubject, cert.RawIssuer) {
			roots = append(roots, pem.EncodeToMemory(block)...)
			continue
		}
		a.cross = append(a.cross, pem.EncodeToMemory(block)...)
	}
	return roots, nil
}

// readKey reads an ECDSA private key; the error is fs.ErrNotExist when there is no such file.
func readKey(path string) (*ecdsa.PrivateKey, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(content)
	if err != nil {
		return nil, damaged(path, err)
	}
	return key, nil
}

func createKey(path string) (*ecdsa.PrivateKey, error) {
	key, block, err := newKey()
	if err != nil {
		return nil, err
	}
	return key, WriteFile(path, block, 0o600)
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// parseKey returns the first EC private key of a PEM text.
func parseKey(content []byte) (*ecdsa.PrivateKey, error) {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "EC PRIVATE KEY" {
			return x509.ParseECPrivateKey(block.Bytes)
		}
	}
	return nil, errors.New("no EC private key in it")
}

// parseCertificate returns the first certificate of a PEM text.
func parseCertificate(content []byte) (*x509.Certificate, error) {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("no certificate in it")
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail on the systems we run on
	}
	return n.Add(n, big.NewInt(1))
}
