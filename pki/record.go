package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/filelock"
)

// RenewalGrace is how long after its expiry a certificate may still be renewed, if
// it is not revoked: a process may have been away.
const RenewalGrace = 24 * time.Hour

const (
	issuedDir  = "issued"
	revokedDir = "revoked"
	linesDir   = "lines"
	recordExt  = ".json"
	lockFile   = "lock"
)

var (
	// ErrRevoked means that a certificate, its key or the whole name was revoked.
	ErrRevoked = errors.New("revoked")
	// ErrTooOld means that a certificate expired longer ago than [RenewalGrace].
	ErrTooOld = errors.New("certificate expired too long ago")
)

// issuedCert is the CA's record of a certificate. The CA keeps it as long as the
// certificate can be used or renewed.
type issuedCert struct {
	Serial      string    `json:"serial"`      // hex
	Fingerprint string    `json:"fingerprint"` // hex sha256 of its DER form: AWS IoT's certificate id
	Key         string    `json:"key"`         // keyHash
	Expires     time.Time `json:"expires"`
}

// issuedRecord is issued/NAME.json. The CA writes it before it returns the certificate,
// so that every certificate can be revoked.
type issuedRecord struct {
	Certificates []issuedCert `json:"certificates"`
}

// revokedRecord is revoked/NAME.json. Its rename into place is the moment of
// revocation; the revocation list follows from these files.
type revokedRecord struct {
	// Barred: no token is made for the name and nothing is signed.
	Barred bool `json:"barred"`
	// At is when the name was last revoked. Every certificate that was issued before
	// is revoked, also one that Certificates does not list.
	At           time.Time     `json:"at"`
	Reason       string        `json:"reason,omitempty"`
	Certificates []revokedCert `json:"certificates"`
}

type revokedCert struct {
	issuedCert
	At time.Time `json:"at"`
}

// canBeForgotten reports whether a certificate can neither be used nor renewed.
func canBeForgotten(expires, now time.Time) bool { return now.After(expires.Add(RenewalGrace + skew)) }

// canBeForgotten reports whether no revocation list needs the certificate any more.
func (c revokedCert) canBeForgotten(now time.Time) bool {
	return canBeForgotten(c.Expires, now) && now.After(c.Expires.Add(crlValidity))
}

// check returns [ErrRevoked] when the name is barred or the certificate is revoked. The
// caller has verified the certificate otherwise.
func (r revokedRecord) check(name Name, cert *x509.Certificate) error {
	if r.Barred {
		return fmt.Errorf("%s was %w at %s", name, ErrRevoked, r.At.UTC().Format(time.RFC3339))
	}
	at := r.At
	i := slices.IndexFunc(r.Certificates, func(c revokedCert) bool { return c.Serial == cert.SerialNumber.Text(16) })
	switch {
	case i >= 0:
		at = r.Certificates[i].At
	case !cert.NotBefore.Add(skew).Before(r.At.Truncate(time.Second)): // NotBefore has no fractions of seconds
		return nil
	}
	return fmt.Errorf("this certificate of %s was %w at %s", name, ErrRevoked, at.UTC().Format(time.RFC3339))
}

// A Revocation is the result of [CA.Revoke].
type Revocation struct {
	Name         Name                 `json:"name"`
	At           time.Time            `json:"at"`
	Certificates []RevokedCertificate `json:"certificates"` // revoked now or before, that have not expired
	Tokens       int                  `json:"tokens"`       // number of open join tokens that were removed
}

// A RevokedCertificate identifies a certificate, for brokers on which certificates must
// be revoked one by one.
type RevokedCertificate struct {
	Serial      string    `json:"serial"`      // hex
	Fingerprint string    `json:"fingerprint"` // hex sha256 of its DER form
	Expires     time.Time `json:"expires"`
}

// Revoke revokes all certificates of a name, removes its join tokens and bars the name:
// the CA signs nothing for it until [CA.Allow]. To revoke a revoked name is no error.
// The audit record is written before anything is revoked, and the revocation list before Revoke returns.
func (ca *CA) Revoke(name Name, c Command) (Revocation, error) {
	rev, err := ca.revoke(name, c)
	if err != nil {
		return rev, fmt.Errorf("revoking %s: %w", name, err)
	}
	return rev, nil
}

func (ca *CA) revoke(name Name, c Command) (Revocation, error) {
	if err := name.Validate(); err != nil {
		return Revocation{}, err
	}
	unlock, err := ca.lock()
	if err != nil {
		return Revocation{}, err
	}
	defer unlock()
	now := time.Now().UTC()
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, name)
	if err != nil {
		return Revocation{}, err
	}
	rec, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
	if err != nil {
		return Revocation{}, err
	}
	rev := Revocation{Name: name, At: now, Certificates: []RevokedCertificate{}}
	rec.Certificates = slices.DeleteFunc(rec.Certificates, func(c revokedCert) bool { return c.canBeForgotten(now) })
	for _, c := range issued.Certificates {
		known := slices.ContainsFunc(rec.Certificates, func(r revokedCert) bool { return r.Serial == c.Serial })
		if known || canBeForgotten(c.Expires, now) {
			continue
		}
		rec.Certificates = append(rec.Certificates, revokedCert{c, now})
	}
	for _, c := range rec.Certificates {
		if now.Before(c.Expires) {
			rev.Certificates = append(rev.Certificates, RevokedCertificate{c.Serial, c.Fingerprint, c.Expires})
		}
	}
	if err := ca.recordCommand(c, "RevokeName", identityKind, string(name)); err != nil {
		return rev, err
	}
	rec.Barred, rec.At, rec.Reason = true, now, c.Reason
	if err := writeRecord(ca.dir, revokedDir, name, rec); err != nil {
		return rev, err
	}
	if rev.Tokens, err = ca.withdrawTokens(name); err != nil {
		return rev, err
	}
	_, err = ca.writeCRL(now)
	return rev, err
}

// Allow lets a revoked name join again, with a new join token and a new key.
// Revoked certificates stay revoked. It does nothing for a name that is not barred.
func (ca *CA) Allow(name Name, c Command) (changed bool, err error) {
	if err := name.Validate(); err != nil {
		return false, fmt.Errorf("allowing %s: %w", name, err)
	}
	unlock, err := ca.lock()
	if err != nil {
		return false, fmt.Errorf("allowing %s: %w", name, err)
	}
	defer unlock()
	rec, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
	if err == nil && rec.Barred {
		rec.Barred, changed = false, true
		if err = ca.recordCommand(c, "AllowName", identityKind, string(name)); err == nil {
			err = writeRecord(ca.dir, revokedDir, name, rec)
		}
	}
	if err != nil {
		return false, fmt.Errorf("allowing %s: %w", name, err)
	}
	return changed, nil
}

// renewableName returns the name of a client certificate if it may be renewed: the CA has
// issued it, neither it nor its issuing CA is revoked, and it is valid or was valid until
// at most [RenewalGrace] ago. Otherwise it returns an error. sent is what the client has
// sent: its certificate, then its issuing CA.
func (ca *CA) renewableName(sent []*x509.Certificate) (Name, error) {
	name, _, err := ca.renewable(sent)
	return name, err
}

// renewable is renewableName that also returns the root of the certificate.
func (ca *CA) renewable(sent []*x509.Certificate) (Name, *x509.Certificate, error) {
	return readRenewableName(ca.dir, ca.roots().all(), sent)
}

// readRenewableName is renewableName for the roots and the records in dir. It also returns the root of the certificate.
func readRenewableName(dir string, roots, sent []*x509.Certificate) (Name, *x509.Certificate, error) {
	if len(sent) == 0 {
		return "", nil, ErrNoPeer
	}
	cert := sent[0]
	at := time.Now()
	if late := at.Sub(cert.NotAfter); late > RenewalGrace {
		return "", nil, fmt.Errorf("%w: at %s", ErrTooOld, cert.NotAfter.UTC().Format(time.RFC3339))
	} else if late > 0 {
		at = cert.NotAfter
	}
	name, chain, err := verifyClient(sent, poolOf(roots), at)
	if err != nil {
		return "", nil, err
	}
	issuers, err := readRootLists(dir, roots)
	if err != nil {
		return "", nil, err
	}
	root := chain[len(chain)-1]
	for _, c := range chain[1:] {
		if issuers.has(root, c) {
			return name, root, fmt.Errorf("the issuing CA of this certificate of %s was %w", name, ErrRevoked)
		}
	}
	revoked, err := readRecord[revokedRecord](dir, revokedDir, name)
	if err != nil {
		return "", nil, err
	}
	return name, root, revoked.check(name, cert)
}

// lock waits until no other goroutine or process changes the CA's directory, and keeps
// them from changing it until unlock is called.
func (ca *CA) lock() (unlock func(), err error) {
	ca.mu.Lock()
	release, err := filelock.Wait(filepath.Join(ca.dir, lockFile))
	if err != nil {
		ca.mu.Unlock()
		return nil, fmt.Errorf("locking CA %s: %w", ca.dir, err)
	}
	return func() {
		release()
		ca.mu.Unlock()
	}, nil
}

// readRecord reads the record of a name; a missing one is empty.
func readRecord[R issuedRecord | revokedRecord | lineRecord | trustRecord](dir, kind string, name Name) (R, error) {
	var rec R
	path := filepath.Join(dir, kind, string(name)+recordExt)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err != nil {
		return rec, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rec); err != nil {
		return rec, fmt.Errorf("record %s is damaged: %w; restore it from a backup", path, err)
	}
	return rec, nil
}

// writeRecord writes the record of a name.
func writeRecord[R issuedRecord | revokedRecord | lineRecord | trustRecord](dir, kind string, name Name, rec R) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, kind, string(name)+recordExt), data, 0o600)
}

// Enrolled reports whether the identity of name in dir needs no join token: the CA in
// caDir has issued its certificate, which may be used or renewed. Enrolled reads the
// CA's directory, but not its key.
func Enrolled(caDir, dir string, name Name) bool {
	data, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil {
		return false
	}
	_, chain, err := decodePair(data)
	if err != nil || len(chain) == 0 {
		return false
	}
	data, err = os.ReadFile(filepath.Join(caDir, caCertFile))
	if err != nil {
		return false
	}
	roots, err := parseCertificates(data)
	if err != nil {
		return false
	}
	holder, _, err := readRenewableName(caDir, roots, chain)
	if err != nil || holder != name {
		return false
	}
	lines, err := readRecord[lineRecord](caDir, linesDir, name)
	if err != nil {
		return false
	}
	hash, err := keyHash(chain[0].PublicKey)
	return err == nil && !lines.isSuperseded(hash)
}

// Fingerprint returns the text by which people and commands identify a CA: "sha256:" and
// the hex hash of its certificate's DER form.
func Fingerprint(ca *x509.Certificate) string {
	return "sha256:" + derHash(ca.Raw)
}

// derHash returns the hex sha256 of DER data.
func derHash(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
