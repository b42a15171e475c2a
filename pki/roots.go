package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// maxRoots bounds the certificates in a file or an answer with roots.
const maxRoots = 32

// parseCertificates reads all certificates of PEM data: at least one.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for b, rest := pem.Decode(data); b != nil; b, rest = pem.Decode(rest) {
		if b.Type != pemCert || len(certs) == maxRoots {
			return nil, fmt.Errorf("holds something else than at most %d certificates", maxRoots)
		}
		cert, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("holds no certificate")
	}
	return certs, nil
}

// poolOf returns a pool of these roots.
func poolOf(roots []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range roots {
		pool.AddCert(c)
	}
	return pool
}

// hasCert reports whether certs has a certificate.
func hasCert(certs []*x509.Certificate, cert *x509.Certificate) bool {
	return slices.ContainsFunc(certs, cert.Equal)
}

// isIssuer reports whether a certificate is that of an issuing CA.
func isIssuer(c *x509.Certificate) bool { return isIssuerOf(c, Agents) || isIssuerOf(c, Services) }

// isRoot reports whether a certificate is that of a root: of a CA that has signed itself and is no issuing CA.
func isRoot(c *x509.Certificate) bool {
	return c.IsCA && !isIssuer(c) && bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignatureFrom(c) == nil
}

// A trust is the roots that a process trusts. It is never changed.
type trust struct {
	roots []*x509.Certificate
	// crosses are the cross certificates by which the process came to trust roots. Before it uses stored roots, it
	// verifies by them that the roots follow from those that an operator gave it.
	crosses []*x509.Certificate
	pool    *x509.CertPool // of roots
	// ignored is why these are the roots of the CA file and not those in trustFile; nil when there is no such reason, or
	// not any more.
	ignored error
}

func newTrust(roots, crosses []*x509.Certificate) *trust {
	return &trust{roots: roots, crosses: crosses, pool: poolOf(roots)}
}

// encode returns roots and cross certificates as PEM.
func (t *trust) encode() []byte { return append(encodeChain(t.roots), encodeChain(t.crosses)...) }

// isSame reports whether two trusts have the same roots and cross certificates.
func (t *trust) isSame(other *trust) bool { return bytes.Equal(t.encode(), other.encode()) }

// fingerprints returns the fingerprints of the roots.
func (t *trust) fingerprints() []string {
	var texts []string
	for _, c := range t.roots {
		texts = append(texts, Fingerprint(c))
	}
	return texts
}

// follow returns the trust in exactly the roots that certs has. It fails unless this trust has each of them, or one
// of its roots vouches for it: by a cross certificate in certs, or by several, one after the other. So whoever has
// the key of an issuing CA can give a process no root.
func (t *trust) follow(certs []*x509.Certificate) (*trust, error) {
	var roots, given []*x509.Certificate
	for _, c := range certs {
		switch {
		case !isRoot(c):
			given = append(given, c)
		case !hasCert(roots, c):
			roots = append(roots, c)
		}
	}
	if len(roots) == 0 {
		return nil, errors.New("there is no root")
	}
	crosses := vouched(t.roots, given)
	for _, root := range roots {
		isVouched := permitsIssuers(root) &&
			slices.ContainsFunc(crosses, func(x *x509.Certificate) bool { return isCrossOf(x, root) })
		if !hasCert(t.roots, root) && !isVouched {
			return nil, fmt.Errorf("no root that is trusted vouches for %q, %s", root.Subject.CommonName, Fingerprint(root))
		}
	}
	kept := slices.Clone(t.crosses)
	for _, x := range crosses {
		if !hasCert(kept, x) {
			kept = append(kept, x)
		}
	}
	return newTrust(roots, kept), nil
}

// vouched returns those of the cross certificates that a trusted root has signed, or the subject of another one that
// it returns.
func vouched(trusted, crosses []*x509.Certificate) (good []*x509.Certificate) {
	for found := true; found; {
		found = false
		for _, x := range crosses {
			signs := func(by *x509.Certificate) bool { return x.CheckSignatureFrom(by) == nil }
			if isCross(x) && !hasCert(good, x) && (slices.ContainsFunc(trusted, signs) || slices.ContainsFunc(good, signs)) {
				good, found = append(good, x), true
			}
		}
	}
	return good
}

// checkSignatures returns an error when certificates in trustFile are damaged although they can be parsed: when none is
// a root, and when the issuer of one, by name or by key, is among stored or anchors, those in the CA file, and has not
// signed it. The issuer of a cross certificate of another region is not among them.
func checkSignatures(stored, anchors []*x509.Certificate) error {
	if !slices.ContainsFunc(stored, isRoot) {
		return errors.New("holds no root")
	}
	for _, c := range stored {
		isNamed, isSigned := false, false
		for _, by := range slices.Concat(stored, anchors) {
			if bytes.Equal(c.RawIssuer, by.RawSubject) || len(c.AuthorityKeyId) > 0 && bytes.Equal(c.AuthorityKeyId,
				by.SubjectKeyId) {
				isNamed, isSigned = true, isSigned || c.CheckSignatureFrom(by) == nil
			}
		}
		if isNamed && !isSigned {
			return fmt.Errorf("the signature of %q, serial number %x, is wrong", c.Subject.CommonName, c.SerialNumber)
		}
	}
	return nil
}

// isCross reports whether a certificate has the form of a cross certificate: that of a CA that permits issuing CAs and
// is none. An issuing CA has its role in its certificate, and a path length of 0; both are signed by the root. So the
// certificate of an issuing CA vouches for no root.
func isCross(c *x509.Certificate) bool { return c.IsCA && permitsIssuers(c) && !isIssuer(c) }

// isCrossOf reports whether a cross certificate has the name and the key of a root.
func isCrossOf(x, root *x509.Certificate) bool {
	key, ok := x.PublicKey.(*ecdsa.PublicKey)
	return ok && bytes.Equal(x.RawSubject, root.RawSubject) && key.Equal(root.PublicKey)
}

// crossSign makes the cross certificate by which a root vouches for the next one. No process sends it in TLS: the path
// length of roots permits issuing CAs only, so no chain through it is valid.
func crossSign(by *x509.Certificate, key *ecdsa.PrivateKey, next *x509.Certificate) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial, Subject: next.Subject,
		NotBefore: next.NotBefore, NotAfter: by.NotAfter, KeyUsage: next.KeyUsage, BasicConstraintsValid: true, IsCA: true,
		MaxPathLen: next.MaxPathLen}, by, next.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
