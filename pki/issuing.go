package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"time"

	"atoll.dev/internal/atomicfile"
)

// A Role is what an issuing CA may sign. It is the organizational unit of the issuing CA's own certificate, which only
// the root can sign.
type Role string

// Roles of issuing CAs.
const (
	Agents   Role = "agents"   // certificates of management clusters, valid as a client's only
	Services Role = "services" // certificates of system:SERVICE, and the revocation list
)

// Roles are all roles.
var Roles = [...]Role{Services, Agents}

const (
	issuingDir = "issuing"
	issuingExt = ".pem"

	// issuingValidity is the life of an issuing CA. It is renewed when two thirds of it are over, so an operator whose
	// root key is elsewhere has four months to bring it.
	issuingValidity = 365 * 24 * time.Hour
)

// ErrRootOffline means that an operation needs the root's key, and the key is not in the CA's directory.
var ErrRootOffline = errors.New("the root's key is not here")

// ErrNoIssuer means that the CA has no issuing CA that is valid now.
var ErrNoIssuer = errors.New("no issuing CA is valid now")

// roleOf returns the role of the issuing CA that signs a name.
func roleOf(name Name) Role {
	if name.IsService() {
		return Services
	}
	return Agents
}

// An issuer is a CA that signs certificates of processes: an issuing CA, or the root of a region that has none.
type issuer struct {
	role Role // "" for the root
	cert *x509.Certificate
	key  *ecdsa.PrivateKey // nil once nothing needs it
}

// chainOf returns a certificate of the issuer with what its holder must send along.
func (i issuer) chainOf(leaf *x509.Certificate) []*x509.Certificate {
	if i.role == "" {
		return []*x509.Certificate{leaf}
	}
	return []*x509.Certificate{leaf, i.cert}
}

// hasBegun reports whether an issuing CA is valid already.
func (i issuer) hasBegun(now time.Time) bool { return !now.Before(i.cert.NotBefore) }

// isDue reports whether an issuing CA must be renewed.
func (i issuer) isDue(now time.Time) bool { return !now.Before(renewAt(i.cert)) }

// hasIssuers reports whether issuing CAs sign in this region. The root of an older region permits none, and signs
// itself.
func (ca *CA) hasIssuers() bool { return permitsIssuers(ca.cert) }

func permitsIssuers(root *x509.Certificate) bool { return root.MaxPathLen > 0 }

// issuerOf returns the CA that signs for a role now. It fails with [ErrNoIssuer] when there is none.
func (ca *CA) issuerOf(role Role, now time.Time) (issuer, error) {
	if !ca.hasIssuers() {
		key, err := ca.rootKey()
		return issuer{cert: ca.cert, key: key}, err
	}
	have, err := ca.readIssuers()
	if err != nil {
		return issuer{}, err
	}
	signer, damaged := have.signer(role, now), have.damagedOf(role)
	switch {
	case signer != nil && !now.After(signer.cert.NotAfter):
		return *signer, nil
	case damaged != nil:
		return issuer{}, fmt.Errorf("%w for %s: file %s is damaged: %w; restore it from a backup, or run `atoll ca issue`",
			ErrNoIssuer, role, damaged.path, damaged.err)
	case signer != nil:
		return issuer{}, fmt.Errorf("%w for %s: the last one ended at %s; make one with `atoll ca issue`", ErrNoIssuer,
			role, signer.cert.NotAfter.UTC().Format(time.RFC3339))
	case slices.ContainsFunc(have.all, func(i issuer) bool { return i.role == role && !i.hasBegun(now) }):
		return issuer{}, fmt.Errorf("%w for %s: none has begun; check the clock of this machine, and if it is right, make "+
			"one with `atoll ca issue`", ErrNoIssuer, role)
	}
	return issuer{}, fmt.Errorf("%w for %s: make one with `atoll ca issue`", ErrNoIssuer, role)
}

// newIssuer makes an issuing CA with a new key and writes it to its file. last is the one that signs until now, or nil.
// The caller holds the lock.
func (ca *CA) newIssuer(role Role, rootKey *ecdsa.PrivateKey, last *issuer, now time.Time) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		// A space is in no Name, so an issuing CA cannot pass for a process.
		Subject: pkix.Name{CommonName: "Atoll region CA for " + string(role) + " " + shortSerial(serial),
			OrganizationalUnit: []string{string(role)}},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(issuingValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	// Every verifier of TLS, not only ours, refuses a server whose issuing CA lacks this usage.
	if role == Services {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if tmpl.NotAfter.After(ca.cert.NotAfter) {
		tmpl.NotAfter = ca.cert.NotAfter
	}
	// Certificates have no fractions of seconds, and of the issuing CAs that have begun the one that began last signs.
	// Since last has begun, the new one begins within a second.
	if last != nil && tmpl.NotBefore.Before(last.cert.NotBefore.Add(time.Second)) {
		tmpl.NotBefore = last.cert.NotBefore.Add(time.Second)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, &key.PublicKey, rootKey)
	if err != nil {
		return err
	}
	data, err := encodeKey(key)
	if err != nil {
		return err
	}
	return atomicfile.Create(ca.issuerFile(role, tmpl), append(data, encodeCert(der)...), 0o600)
}

// maintainIssuers makes the issuing CAs that are missing or due, if the root's key is here, and removes what nothing
// needs any more of the earlier ones. The caller holds the lock. Without the root's key it makes none, which is no
// error: [CA.Status] reports it. Nor does it make one in the place of a damaged one, which an operator may restore.
func (ca *CA) maintainIssuers(now time.Time) error {
	if !ca.hasIssuers() {
		return nil
	}
	have, err := ca.readIssuers()
	if err != nil {
		return err
	}
	for _, role := range Roles {
		signer := have.signer(role, now)
		if signer != nil && !signer.isDue(now) || signer == nil && have.damagedOf(role) != nil {
			continue
		}
		key, err := ca.rootKey()
		if errors.Is(err, ErrRootOffline) {
			continue
		}
		// The list is older than the first issuing CA, so an issuing CA without a list is an error.
		if err == nil {
			err = ca.writeRootList(key, nil, now)
		}
		if err == nil {
			err = ca.newIssuer(role, key, signer, now)
		}
		if err != nil {
			return fmt.Errorf("making the issuing CA of %s: %w", role, err)
		}
	}
	return ca.sweepIssuers(have.all, now)
}

// sweepIssuers removes the keys of issuing CAs that have a successor, once their certificates have ended so long ago
// that no revocation list needs them. The certificate of an issuing CA stays until it expires, so that [CA.Issue] can
// revoke it: somebody may have a copy of its key.
func (ca *CA) sweepIssuers(all []issuer, now time.Time) error {
	keep := max(ca.validity(), DefaultValidity) + RenewalGrace + crlValidity + 2*skew
	for i, old := range all {
		next := slices.IndexFunc(all[i+1:], func(other issuer) bool { return other.role == old.role })
		if next < 0 || now.Before(all[i+1+next].cert.NotBefore.Add(keep)) {
			continue
		}
		var err error
		switch {
		case now.After(old.cert.NotAfter.Add(skew)):
			err = ca.removeIssuer(old)
		case old.key != nil:
			err = atomicfile.Write(ca.issuerFile(old.role, old.cert), encodeCert(old.cert.Raw), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
