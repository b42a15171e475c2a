package credential

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/hosting/controlplane"
)

const (
	maxRequest  = 16 << 10
	maxUsername = 512
)

// order is the content of the certificate and of the binding that a valid Credential orders.
type order struct {
	key       crypto.PublicKey
	user      string // in the plane; no other credential has it
	group     string // the only one, and the binding's name
	role      string // the ClusterRole that the binding grants
	principal string // of the customer who created the credential
	expires   time.Time
}

// certificate returns the request to the plane's certificate authority.
func (w order) certificate() controlplane.CertificateRequest {
	return controlplane.CertificateRequest{
		PublicKey: w.key, CommonName: w.user, Organization: w.group, Expires: w.expires,
	}
}

// idPattern matches the ids of credentials, which are parts of object names.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$`)

// clusterRoles has the ClusterRole of Kubernetes for each role of a credential.
var clusterRoles = map[string]string{
	"": adminRole, apihosting.RoleAdmin: adminRole, apihosting.RoleEdit: "edit", apihosting.RoleView: "view",
}

// parseCredential returns the order of a Credential. Its certificate is valid for longest at most. The error names
// the invalid field of the spec, for the owner of the Credential.
func parseCredential(c *apihosting.Credential, longest time.Duration) (order, error) {
	s := c.Spec
	life := time.Duration(s.ExpirationSeconds) * time.Second
	switch {
	case !idPattern.MatchString(s.ID):
		return order{}, errors.New("spec.id: must be 1 to 100 letters, digits, '-', '_' and '.'")
	case c.Name != apihosting.CredentialName(s.ID):
		// Two Credentials of one id would share a binding.
		return order{}, fmt.Errorf("spec.id: the Credential of this id is called %s", apihosting.CredentialName(s.ID))
	case s.ExpirationSeconds < 1 || s.ExpirationSeconds > int64(longest/time.Second):
		return order{}, fmt.Errorf("spec.expirationSeconds: must be from 1 to %d", int64(longest/time.Second))
	case clusterRoles[s.Role] == "":
		return order{}, errors.New("spec.role: must be view, edit or admin")
	}
	if err := checkUsername(s.Username); err != nil {
		return order{}, fmt.Errorf("spec.username: %w", err)
	}
	key, err := parseRequest(s.Request)
	if err != nil {
		return order{}, fmt.Errorf("spec.request: %w", err)
	}
	return order{
		key: key, user: apihosting.CredentialUser(s.ID), group: apihosting.CredentialGroup(s.ID),
		role: clusterRoles[s.Role], principal: s.Username,
		// From the object's creation, so that a retry gives the same certificate.
		expires: c.CreationTimestamp.Add(life).UTC().Truncate(time.Second),
	}, nil
}

// checkUsername returns an error for a name that no customer can have. Names with
// the prefix "system:" belong to Kubernetes, and some of them have rights.
func checkUsername(name string) error {
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > maxUsername:
		return fmt.Errorf("must be at most %d bytes", maxUsername)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("must be printable")
	case strings.HasPrefix(strings.ToLower(name), "system:"):
		return errors.New(`must not start with "system:"`)
	}
	return nil
}

// parseRequest returns the key of a PEM certificate request that is signed by
// that key. Subject, names and extensions are ignored.
func parseRequest(text string) (crypto.PublicKey, error) {
	if len(text) > maxRequest {
		return nil, fmt.Errorf("must be at most %d bytes", maxRequest)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return nil, errors.New("is no PEM certificate request")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("has something after the certificate request")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, errors.New("is damaged")
	}
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, errors.New("is not signed by its own key")
	}
	return csr.PublicKey, nil
}

// checkKey refuses weak keys, and keys so large that each use is slow.
func checkKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() || k.Curve == elliptic.P521() {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits >= 2048 && bits <= 8192 {
			return nil
		}
	}
	return errors.New("has a key of another kind than ECDSA P-256, P-384, P-521, Ed25519, or RSA of 2048 to 8192 bits")
}
