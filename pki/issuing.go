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

// A Role says whose certificates an issuing CA may sign. It is written in the issuing CA's own certificate, as the
// organizational unit. Only the root can sign that certificate, so no issuing CA can change its role.
type Role string

// Roles of issuing CAs.
const (
	// Agents signs certificates of management clusters. They are valid for clients only.
	Agents Role = "agents"
	// Services signs certificates of system:SERVICE, and the revocation list.
	Services Role = "services"
)

// Roles has every role once.
var Roles = [...]Role{Services, Agents}

// issuingValidity is the life of an issuing CA. The CA makes the next one when two thirds of it are over. So an
// operator who keeps the root's key elsewhere has four months to bring it.
const issuingValidity = 365 * 24 * time.Hour

// ErrRootOffline means that an operation needs the root's key, and the key is not in the CA's directory.
var ErrRootOffline = errors.New("the root's key is not here")

// ErrNoIssuer means that the CA cannot sign certificates of a role, because none of its issuing CAs is valid now.
var ErrNoIssuer = errors.New("no issuing CA is valid now")

// roleOf returns the role of the issuing CA that may sign certificates of a name.
func roleOf(name Name) Role {
	if name.IsService() {
		return Services
	}
	return Agents
}

// An issuer is a CA that signs certificates of processes: an issuing CA, or the root of a region that has no issuing
// CAs.
type issuer struct {
	role Role              // "" for the root
	root *x509.Certificate // that has certified it; its own certificate for the root
	cert *x509.Certificate
	key  *ecdsa.PrivateKey // nil for an issuing CA whose key removeReplaced has removed
}

// chainOf returns what the holder of a certificate sends to its peers: the certificate leaf, which the issuer has
// signed, and that of the issuer unless it is the root, which peers have.
func (i issuer) chainOf(leaf *x509.Certificate) []*x509.Certificate {
	if i.role == "" {
		return []*x509.Certificate{leaf}
	}
	return []*x509.Certificate{leaf, i.cert}
}

// hasBegun reports whether the time at which the issuer becomes valid has come.
func (i issuer) hasBegun(now time.Time) bool { return !now.Before(i.cert.NotBefore) }

// isDue reports whether it is time to make the next issuing CA of this one's role.
func (i issuer) isDue(now time.Time) bool { return !now.Before(renewAt(i.cert)) }

// permitsIssuers reports whether a root's certificate permits CAs below it. The root of a region that an earlier Atoll
// made permits none, and signs the certificates itself until [CA.CompleteRoot].
func permitsIssuers(root *x509.Certificate) bool { return root.MaxPathLen > 0 }

// issuerOf returns the CA that signs certificates of a role now: an issuing CA, or the root in a region that has no
// issuing CAs. It fails with [ErrNoIssuer] when there is none, and then says what an operator can do.
func (ca *CA) issuerOf(role Role, now time.Time) (issuer, error) {
	have, err := ca.readIssuers()
	if err != nil {
		return issuer{}, err
	}
	root := ca.roots().present
	signer, damaged := have.signer(role, now), have.damagedOf(role)
	switch {
	case signer != nil && !now.After(signer.cert.NotAfter):
		return *signer, nil
	case !permitsIssuers(root):
		return ca.rootIssuer(root)
	case damaged != nil:
		return issuer{}, fmt.Errorf("%w for %s: file %s is damaged: %w; restore it from a backup, or run `atoll ca issue`",
			ErrNoIssuer, role, damaged.path, damaged.err)
	case signer != nil:
		return issuer{}, fmt.Errorf("%w for %s: the last one ended at %s; make one with `atoll ca issue`", ErrNoIssuer,
			role, signer.cert.NotAfter.UTC().Format(time.RFC3339))
	case slices.ContainsFunc(have.intact, func(i issuer) bool { return i.role == role && !i.hasBegun(now) }):
		return issuer{}, fmt.Errorf("%w for %s: none has begun; check the clock of this machine, and if it is right, make "+
			"one with `atoll ca issue`", ErrNoIssuer, role)
	}
	return issuer{}, fmt.Errorf("%w for %s: make one with `atoll ca issue`", ErrNoIssuer, role)
}

// rootIssuer returns a root as the CA that signs certificates of processes.
func (ca *CA) rootIssuer(root *x509.Certificate) (issuer, error) {
	key, err := ca.rootKey(root, nil)
	return issuer{root: root, cert: root, key: key}, err
}

// ownIssuer returns the CA that signs the certificate of the signing service itself. While the next root takes over, it
// is below the present root as long as that is possible, because a process that joins or was away may know only that
// one.
func (ca *CA) ownIssuer(now time.Time) (issuer, error) {
	roots := ca.roots()
	if roots.next != nil {
		have, err := ca.readIssuers()
		if err != nil {
			return issuer{}, err
		}
		if !permitsIssuers(roots.present) {
			return ca.rootIssuer(roots.present)
		}
		if i := have.below(roots.present).signer(Services, now); i != nil && !now.After(i.cert.NotAfter) {
			return *i, nil
		}
	}
	return ca.issuerOf(Services, now)
}

// issuingRoot returns the root that certifies new issuing CAs: the next one as soon as it has certified one.
func (ca *CA) issuingRoot(have issuerSet) *x509.Certificate {
	roots := ca.roots()
	if roots.next != nil && len(have.below(roots.next).intact) > 0 {
		return roots.next
	}
	return roots.present
}

// makeIssuer makes an issuing CA with a new key and writes both to a new file. current is the issuing CA that signs for
// the role until now, or nil. The caller holds the lock.
func (ca *CA) makeIssuer(role Role, root rootPair, current *issuer, now time.Time) error {
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
		// The common name has spaces, which a Name cannot have. So this certificate proves no identity of a process.
		Subject: pkix.Name{CommonName: "Atoll region CA for " + string(role) + " " + shortSerial(serial),
			OrganizationalUnit: []string{string(role)}},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(issuingValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it can sign no further CA
	}
	// Only the CA of services has the usage of servers: any TLS client refuses a server whose issuing CA lacks it.
	if role == Services {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if tmpl.NotAfter.After(root.cert.NotAfter) {
		tmpl.NotAfter = root.cert.NotAfter
	}
	// Of the issuing CAs that have begun, the one that began last signs. So the new one must begin after current, by at
	// least a second, since certificates have whole seconds. current has begun, so this is at most a second from now.
	if current != nil && tmpl.NotBefore.Before(current.cert.NotBefore.Add(time.Second)) {
		tmpl.NotBefore = current.cert.NotBefore.Add(time.Second)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, root.cert, &key.PublicKey, root.key)
	if err != nil {
		return err
	}
	data, err := encodeKey(key)
	if err != nil {
		return err
	}
	return atomicfile.Create(ca.issuerFile(role, tmpl), append(data, encodeCert(der)...), 0o600)
}

// renewIssuers makes an issuing CA for each role that has none, or whose issuing CA is due for renewal. It removes the
// files of revoked ones, which a killed [CA.Issue] has left, and calls removeReplaced. The caller holds the lock.
//
// For a role it makes no issuing CA, and returns no error, when the root's key is not here, and when the only issuing
// CA that could sign has a damaged file, because an operator may restore that file. [CA.Status] warns in both cases.
func (ca *CA) renewIssuers(now time.Time) error {
	have, err := ca.readIssuers()
	if err != nil {
		return err
	}
	if err := ca.removeIssuers(have.revoked); err != nil {
		return err
	}
	root := ca.issuingRoot(have)
	if !permitsIssuers(root) {
		return nil
	}
	for _, role := range Roles {
		signer := have.signer(role, now)
		if signer != nil && !signer.isDue(now) || signer == nil && have.damagedOf(role) != nil {
			continue
		}
		key, err := ca.rootKey(root, nil)
		if errors.Is(err, ErrRootOffline) {
			continue
		}
		// The root's revocation list is written before the first issuing CA: later, no list means that it was lost.
		if err == nil {
			err = ca.writeRootList(root, key, nil, now)
		}
		if err == nil {
			err = ca.makeIssuer(role, rootPair{key, root}, signer, now)
		}
		if err != nil {
			return fmt.Errorf("making the issuing CA of %s: %w", role, err)
		}
	}
	return ca.removeReplaced(have.intact, now)
}

// removeReplaced removes the keys and files of replaced issuing CAs that nothing needs any more. An issuing CA is
// replaced when a later one of its role signs in its place.
//
// It removes the key when the last certificate that the key may have signed needs no revocation list any more. It
// removes the whole file when the issuing CA's own certificate has expired. Until then the certificate must be known:
// somebody may have a copy of the key, and [CA.Issue] can revoke the certificate.
//
// all are in the order in which they begin.
func (ca *CA) removeReplaced(all []issuer, now time.Time) error {
	// How long the key is needed after the replacement: while the last certificate that it signed is valid, then while
	// that one can be renewed, and then while a server may use the last revocation list that has it.
	keyNeeded := max(ca.validity(), DefaultValidity) + RenewalGrace + crlValidity + 2*skew
	for i, old := range all {
		next := slices.IndexFunc(all[i+1:], func(other issuer) bool {
			return other.role == old.role && other.root.Equal(old.root)
		})
		if next < 0 {
			continue // it is the last one of its role below its root
		}
		if replaced := all[i+1+next].cert.NotBefore; now.Before(replaced.Add(keyNeeded)) {
			continue
		}
		var err error
		switch {
		case now.After(old.cert.NotAfter.Add(skew)):
			err = ca.removeIssuers([]issuer{old})
		case old.key != nil:
			err = atomicfile.Write(ca.issuerFile(old.role, old.cert), encodeCert(old.cert.Raw), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
