package pki

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
)

const (
	pemKey  = "PRIVATE KEY"
	pemCert = "CERTIFICATE"
	pemCSR  = "CERTIFICATE REQUEST"
)

// maxChain bounds the certificates of one identity: its own and its issuing CA's.
const maxChain = 2

// ErrWeakKey means that a request's key is not ECDSA P-256.
var ErrWeakKey = errors.New("key is not ECDSA P-256")

// newKey makes an ECDSA P-256 key.
func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// encodeKey returns a key as PEM, PKCS #8.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// encodeCert returns a certificate as PEM.
func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der})
}

// parseCertificate reads the first certificate of PEM data.
func parseCertificate(data []byte) (*x509.Certificate, error) {
	b, _ := pem.Decode(data)
	if b == nil || b.Type != pemCert {
		return nil, errors.New("holds no certificate")
	}
	return x509.ParseCertificate(b.Bytes)
}

// parseChain reads all certificates of PEM data, at most maxChain.
func parseChain(data []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for len(bytes.TrimSpace(data)) > 0 {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil || b.Type != pemCert || len(chain) == maxChain {
			return nil, errors.New("holds something else than a certificate and its issuing CA")
		}
		cert, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, err
		}
		chain = append(chain, cert)
	}
	if len(chain) == 0 {
		return nil, errors.New("holds no certificate")
	}
	return chain, nil
}

// encodeCSR makes a certificate request for key. The subject is the name that the
// certificate is expected to have; the signer refuses another, and sets its own.
func encodeCSR(key *ecdsa.PrivateKey, name Name) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: string(name)},
	}, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), nil
}

// decodePair parses the PEM data of a key and, if already issued, its certificate with
// those that follow it. Any other content is an error.
func decodePair(data []byte) (key *ecdsa.PrivateKey, chain []*x509.Certificate, err error) {
	for rest := data; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			if len(bytes.TrimSpace(rest)) > 0 {
				return nil, nil, errors.New("holds something that is not PEM")
			}
			break
		}
		switch {
		case b.Type == pemKey && key == nil:
			parsed, err := x509.ParsePKCS8PrivateKey(b.Bytes)
			if err != nil {
				return nil, nil, err
			}
			k, ok := parsed.(*ecdsa.PrivateKey)
			if !ok || k.Curve != elliptic.P256() {
				return nil, nil, ErrWeakKey
			}
			key = k
		case b.Type == pemCert && len(chain) < maxChain:
			cert, err := x509.ParseCertificate(b.Bytes)
			if err != nil {
				return nil, nil, err
			}
			chain = append(chain, cert)
		default:
			return nil, nil, fmt.Errorf("holds an unexpected %q", b.Type)
		}
	}
	if key == nil {
		return nil, nil, errors.New("holds no private key")
	}
	if len(chain) > 0 && !key.PublicKey.Equal(chain[0].PublicKey) {
		return nil, nil, errors.New("holds a certificate of another key")
	}
	return key, chain, nil
}

// parseCSR parses one PEM certificate request. It checks that the request is signed by
// its own key and that this key is ECDSA P-256. It does not check subject, alternative
// names or extensions.
func parseCSR(data []byte) (*x509.CertificateRequest, error) {
	b, rest := pem.Decode(data)
	if b == nil || b.Type != pemCSR {
		return nil, errors.New("is not a PEM certificate request")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("has something after the certificate request")
	}
	csr, err := x509.ParseCertificateRequest(b.Bytes)
	if err != nil {
		return nil, err
	}
	pub, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, ErrWeakKey
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("is not signed by its own key: %w", err)
	}
	return csr, nil
}

// keyHash returns the hex sha256 of a public key's DER form.
func keyHash(pub any) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", err
	}
	return derHash(der), nil
}
