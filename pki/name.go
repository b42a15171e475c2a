package pki

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
)

// servicePrefix marks the identities of the region's own services. It has a
// colon, which the name of a consumer cannot have.
const servicePrefix = "system:"

// maxLabel is the length limit of an RFC 1123 label.
const maxLabel = 63

// ErrNoPeer: the peer of a connection has no verified certificate.
var ErrNoPeer = errors.New("no verified client certificate")

// A Name is an identity as a certificate's common name carries it: a consumer's
// name for an agent, system:<service> for one of the region's services.
type Name string

// ServiceName returns the identity of one of the region's services.
func ServiceName(service string) Name { return Name(servicePrefix + service) }

// IsService reports whether the name is that of one of the region's services.
func (n Name) IsService() bool { return strings.HasPrefix(string(n), servicePrefix) }

// Service returns the service's name without its prefix, and "" for an agent.
func (n Name) Service() string {
	if s, ok := strings.CutPrefix(string(n), servicePrefix); ok {
		return s
	}
	return ""
}

// Validate returns an error unless the name is an RFC 1123 label, or system: and an
// RFC 1123 label.
func (n Name) Validate() error {
	label := string(n)
	if n.IsService() {
		label = n.Service()
		if label == "localhost" {
			return errors.New(`no service may be called "localhost"`)
		}
	}
	if err := checkLabel(label); err != nil {
		return fmt.Errorf("identity %q: %w", string(n), err)
	}
	return nil
}

// CheckConsumer returns an error unless name can be the name of a consumer: an RFC 1123
// label of at most 63 characters. No service's identity is one, because a label
// has no colon.
func CheckConsumer(name string) error {
	if err := checkLabel(name); err != nil {
		return fmt.Errorf("consumer %q: %w", name, err)
	}
	return nil
}

// checkLabel returns an error when s is no RFC 1123 label.
func checkLabel(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxLabel:
		return fmt.Errorf("is longer than %d characters", maxLabel)
	case s[0] == '-' || s[len(s)-1] == '-':
		return errors.New("begins or ends with a hyphen")
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return errors.New("is not an RFC 1123 label (lower case letters, digits, hyphens)")
		}
	}
	return nil
}

// PeerName returns the identity that the peer of a connection proved.
//
// It fails with [ErrNoPeer] when the peer has no certificate or TLS did not verify
// the certificate against the region's CA, with [ErrWrongIssuer] when the issuing CA
// that signed the certificate may not sign its name, and with another error when the
// certificate's name is no identity of the region. It never returns the name of an
// unverified certificate.
func PeerName(cs *tls.ConnectionState) (Name, error) {
	if cs == nil || len(cs.VerifiedChains) == 0 {
		return "", ErrNoPeer
	}
	n, err := provenName(cs.VerifiedChains)
	if err != nil {
		return "", fmt.Errorf("peer certificate: %w", err)
	}
	return n, nil
}
