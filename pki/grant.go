package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// An applicant is the proven author of a request to sign.
type applicant struct {
	name        Name
	validity    time.Duration
	by          *x509.Certificate // the certificate that is renewed; nil: a join token, or the CA's own machine
	root        *x509.Certificate // of by
	source      string            // the address, for an alarm
	unrenewable bool              // the certificate is for one command
}

// grant issues a certificate for the key of csr and the applicant that authenticate returns,
// and records it. It returns the certificate with what its holder must send along. It calls
// authenticate while the CA is locked, so that no revocation comes between the authentication
// and the record of the certificate. When the applicant's certificate is superseded, grant
// revokes its line and returns a *supersededError.
func (ca *CA) grant(csr *x509.CertificateRequest, authenticate func() (applicant, error)) (Name, []*x509.Certificate,
	error) {
	hash, err := keyHash(csr.PublicKey)
	if err != nil {
		return "", nil, err
	}
	unlock, err := ca.lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	as, err := authenticate()
	if err != nil {
		return as.name, nil, ca.revokeIfAbandoned(as, err)
	}
	name := as.name
	revoked, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
	switch {
	case err != nil:
		return name, nil, err
	case revoked.Barred:
		return name, nil, fmt.Errorf("%s was %w at %s", name, ErrRevoked, revoked.At.UTC().Format(time.RFC3339))
	case slices.ContainsFunc(revoked.Certificates, func(c revokedCert) bool { return c.Key == hash }):
		return name, nil, fmt.Errorf("this key of %s was %w: make a new one", name, ErrRevoked)
	}
	lines, err := readRecord[lineRecord](ca.dir, linesDir, name)
	if err != nil {
		return name, nil, err
	}
	parent := ""
	if as.by != nil {
		if parent, err = ca.followLine(&lines, as, hash); err != nil {
			return name, nil, err
		}
	} else if lines.isSuperseded(hash) {
		return name, nil, fmt.Errorf("%w: make a new one", errUsedKey)
	}
	chain, err := ca.issue(csr.PublicKey, as)
	if err != nil {
		return name, nil, err
	}
	return name, chain, ca.record(chain, as, hash, parent, lines)
}

// followLine checks a renewal against the line of the applicant's certificate, confirms
// the certificate's key, and returns it. The caller holds the lock.
func (ca *CA) followLine(lines *lineRecord, as applicant, next string) (parent string, err error) {
	if parent, err = keyHash(as.by.PublicKey); err != nil {
		return "", err
	}
	if slices.Contains(as.by.Subject.OrganizationalUnit, commandUnit) {
		return parent, fmt.Errorf("%w: it was made for one command", errUsedKey)
	}
	err = lines.checkRenewal(parent, next)
	if errors.Is(err, ErrSuperseded) {
		return parent, ca.revokeCopiedLine(*lines, as, parent)
	}
	if err != nil {
		return parent, err
	}
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, as.name)
	if err == nil {
		err = lines.checkPace(parent, next, issued.Certificates, as.validity, time.Now())
	}
	if err != nil {
		return parent, err
	}
	return parent, ca.revokeKeys(as.name, lines.confirm(parent, as.by.NotAfter))
}

// record records a certificate. The caller holds the lock, and returns the certificate only
// when there was no error, so that every certificate can be revoked.
func (ca *CA) record(chain []*x509.Certificate, as applicant, hash, parent string, lines lineRecord) error {
	cert := chain[0]
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, as.name)
	if err != nil {
		return err
	}
	now := time.Now()
	issued.Certificates = slices.DeleteFunc(issued.Certificates, func(c issuedCert) bool {
		have := lines.find(c.Key)
		return have != nil && have.Unrenewable && now.After(c.Expires.Add(skew)) || canBeForgotten(c.Expires, now)
	})
	issued.Certificates = append(issued.Certificates, issuedCert{cert.SerialNumber.Text(16), derHash(cert.Raw), hash,
		cert.NotAfter.UTC()})
	lines.forget(now)
	lines.add(hash, parent, cert.NotAfter)
	lines.find(hash).Unrenewable = as.unrenewable
	if err := ca.recordBelow(as.name, chain, issued); err != nil {
		return err
	}
	if err := writeRecord(ca.dir, issuedDir, as.name, issued); err != nil {
		return err
	}
	return writeRecord(ca.dir, linesDir, as.name, lines)
}

// confirm records that the holder of a certificate uses it: the keys that were requested
// beside it are revoked. It returns a *supersededError, and revokes the line, when the
// certificate was superseded. roots are the fingerprints of the roots that the holder trusts.
func (ca *CA) confirm(authenticate func() (applicant, error), roots []string) (Name, error) {
	unlock, err := ca.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	as, err := authenticate()
	if err != nil {
		return as.name, ca.revokeIfAbandoned(as, err)
	}
	lines, err := readRecord[lineRecord](ca.dir, linesDir, as.name)
	if err != nil {
		return as.name, err
	}
	hash, err := keyHash(as.by.PublicKey)
	if err != nil {
		return as.name, err
	}
	if lines.isSuperseded(hash) {
		return as.name, ca.revokeCopiedLine(lines, as, hash)
	}
	if err := ca.recordTrust(as.name, hash, roots); err != nil {
		return as.name, err
	}
	if have := lines.find(hash); have != nil && have.Confirmed {
		return as.name, nil
	}
	if err := ca.revokeKeys(as.name, lines.confirm(hash, as.by.NotAfter)); err != nil {
		return as.name, err
	}
	return as.name, writeRecord(ca.dir, linesDir, as.name, lines)
}

// revokeKeys revokes the certificates of keys of a name; the name may go on with others.
// The caller holds the lock.
func (ca *CA) revokeKeys(name Name, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, name)
	if err != nil {
		return err
	}
	rec, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	rec.Certificates = slices.DeleteFunc(rec.Certificates, func(c revokedCert) bool { return c.canBeForgotten(now) })
	for _, c := range issued.Certificates {
		known := slices.ContainsFunc(rec.Certificates, func(r revokedCert) bool { return r.Serial == c.Serial })
		if !known && slices.Contains(keys, c.Key) {
			rec.Certificates = append(rec.Certificates, revokedCert{c, now})
		}
	}
	if err := writeRecord(ca.dir, revokedDir, name, rec); err != nil {
		return err
	}
	_, err = ca.writeCRL(now)
	return err
}
