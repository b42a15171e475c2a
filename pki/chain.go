package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrWrongIssuer means that a certificate was signed by an issuing CA that may not sign its name.
var ErrWrongIssuer = errors.New("the issuing CA may not sign this name")

// identityOf returns the identity that a verified chain proves. The leaf is first, the region's root is last.
//
// It fails with [ErrWrongIssuer] when an issuing CA of one role has signed a name of the other, so that whoever has
// the key of the agents' issuing CA cannot be a service, and when a chain has more than one issuing CA. The root
// itself may sign every name, as it does in a region that has no issuing CAs.
func identityOf(chain []*x509.Certificate) (Name, error) {
	if len(chain) == 0 {
		return "", ErrNoPeer
	}
	name := Name(chain[0].Subject.CommonName)
	if err := name.Validate(); err != nil {
		return "", err
	}
	switch {
	case chain[0].IsCA:
		return "", fmt.Errorf("%w: %q is a CA itself", ErrWrongIssuer, name)
	case len(chain) <= 2:
		return name, nil
	case len(chain) > 3:
		return "", fmt.Errorf("%w: %q has %d CAs between it and the root", ErrWrongIssuer, name, len(chain)-2)
	case !isIssuerOf(chain[1], roleOf(name)):
		return "", fmt.Errorf("%w: %q was signed by %q", ErrWrongIssuer, name, chain[1].Subject.CommonName)
	}
	return name, nil
}

// provenName returns the identity that verified chains of one certificate prove. All of them must prove it.
func provenName(chains [][]*x509.Certificate) (Name, error) {
	if len(chains) == 0 {
		return "", ErrNoPeer
	}
	var name Name
	for _, chain := range chains {
		var err error
		if name, err = identityOf(chain); err != nil {
			return "", err
		}
	}
	return name, nil
}

// verifyClient verifies a client's certificate at a time, and returns the identity that it proves and its chain up to
// the root. sent is what the client has sent: its certificate, then its issuing CA.
func verifyClient(sent []*x509.Certificate, roots *x509.CertPool, at time.Time) (Name, []*x509.Certificate, error) {
	if len(sent) == 0 {
		return "", nil, ErrNoPeer
	}
	between := x509.NewCertPool()
	for _, c := range sent[1:] {
		between.AddCert(c)
	}
	chains, err := sent[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return "", nil, err
	}
	name, err := provenName(chains)
	return name, chains[0], err
}

// encodeChain returns certificates as PEM, in their order.
func encodeChain(chain []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range chain {
		text.Write(encodeCert(c.Raw))
	}
	return text.Bytes()
}

// rawChain returns the DER forms of certificates, in their order.
func rawChain(chain []*x509.Certificate) [][]byte {
	raw := make([][]byte, 0, len(chain))
	for _, c := range chain {
		raw = append(raw, c.Raw)
	}
	return raw
}

// isIssuerOf reports whether a CA that the root has certified is the issuing CA of a role.
func isIssuerOf(ca *x509.Certificate, r Role) bool {
	return ca.IsCA && slices.Equal(ca.Subject.OrganizationalUnit, []string{string(r)})
}
