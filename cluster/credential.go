package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Lifetimes of a credential.
const (
	DefaultCredentialLifetime = 10 * time.Minute
	MinCredentialLifetime     = time.Minute
	MaxCredentialLifetime     = 24 * time.Hour // unless the region configures another one
	// LongestCredentialLifetime bounds what a region configures: a certificate cannot be taken back,
	// only its rights.
	LongestCredentialLifetime = 30 * 24 * time.Hour
)

// CredentialRole names the rights of a credential in all namespaces of a cluster.
type CredentialRole string

// Roles of a credential.
const (
	CredentialView  CredentialRole = "view"  // reads everything but Secrets and access rights
	CredentialEdit  CredentialRole = "edit"  // changes what runs, and reads Secrets
	CredentialAdmin CredentialRole = "admin" // everything
)

// CredentialRoles are the roles, the least powerful first.
var CredentialRoles = []CredentialRole{CredentialView, CredentialEdit, CredentialAdmin}

// maxRequestBytes is more than a request for the largest key takes.
const maxRequestBytes = 16 << 10

// CheckCertificateRequest returns the problem of a credential's certificate request,
// or "". It accepts one request in PEM, signed by the key that it names: RSA with
// 2048 to 8192 bits, ECDSA of P-256 or more, or Ed25519.
func CheckCertificateRequest(text string) string {
	if len(text) > maxRequestBytes {
		return fmt.Sprintf("has %d bytes; %d are possible", len(text), maxRequestBytes)
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
