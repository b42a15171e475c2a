package spec

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strconv"
	"time"
)

// Credential is what a request for a credential asks for.
type Credential struct {
	Lifetime time.Duration
	CSR      string // PEM, "" when the API is to make the key
}

const defaultLifetime = 10 * time.Minute

var credentialRule = object(map[string]rule{
	"kind": kindRule("Credential"), "expiration_seconds": integer(60, 86400), "csr": matching(certificateRequest),
})

// NewCredential reads the body of a request for a credential, which may be
// empty.
func NewCredential(body []byte) (Credential, Problems, error) {
	c := Credential{Lifetime: defaultLifetime}
	if len(bytes.TrimSpace(body)) == 0 {
		return c, nil, nil
	}
	v, err := decode(body)
	if err != nil {
		return c, nil, err
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return c, nil, fmt.Errorf("the body must be an object, not %s", kindOf(v))
	}
	var p Problems
	withoutNulls(doc)
	credentialRule(&p, "", doc)
	if len(p) > 0 {
		return Credential{}, p.sorted(), nil
	}
	if n, given := doc["expiration_seconds"].(json.Number); given {
		seconds, err := strconv.Atoi(n.String())
		if err != nil {
			return c, nil, fmt.Errorf("reading expiration_seconds: %w", err)
		}
		c.Lifetime = time.Duration(seconds) * time.Second
	}
	c.CSR, _ = doc["csr"].(string)
	return c, nil, nil
}

// maxCSR is more than the largest key takes.
const maxCSR = 16 << 10

// certificateRequest checks that the text is one request, made by who has the
// key.
func certificateRequest(text string) string {
	if len(text) > maxCSR {
		return fmt.Sprintf("has %d bytes; %d are possible", len(text), maxCSR)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
		return "is not one CERTIFICATE REQUEST in PEM"
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "is not a certificate request"
	}
	if err := csr.CheckSignature(); err != nil {
		return "is not signed by the key that it is about"
	}
	switch key := csr.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > 8192 {
			return fmt.Sprintf("has an RSA key of %d bits; 2048 to 8192 are possible", bits)
		}
	case *ecdsa.PublicKey:
		if bits := key.Params().BitSize; bits < 256 {
			return fmt.Sprintf("has an ECDSA key of %d bits; take P-256 or more", bits)
		}
	case ed25519.PublicKey:
	default:
		return "has a key of a kind that is not possible; take ECDSA, RSA or Ed25519"
	}
	return ""
}
