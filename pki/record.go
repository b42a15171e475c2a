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

	"golang.org/x/sys/unix"

	"atoll.dev/internal/atomicfile"
)

// RenewalGrace is for how long after its end a certificate may still be
// renewed, if it is not revoked: a laptop may have slept.
const RenewalGrace = 90 * 24 * time.Hour

const (
	issuedDir  = "issued"
	revokedDir = "revoked"
	recordExt  = ".json"
	lockFile   = "lock"
)

var (
	// ErrRevoked means that a certificate, its key or the whole name was revoked.
	ErrRevoked = errors.New("revoked")
	// ErrTooOld means that a certificate expired longer ago than [RenewalGrace].
	ErrTooOld = errors.New("certificate expired too long ago")
)

// issuedCert is what the CA remembers of a certificate, as long as it can be
// used or renewed.
type issuedCert struct {
	Serial      string    `json:"serial"`      // hex
	Fingerprint string    `json:"fingerprint"` // hex sha256 of its DER form: AWS IoT's certificate id
	Key         string    `json:"key"`         // keyHash
	Expires     time.Time `json:"expires"`
}

// issuedRecord is issued/NAME.json. It is written before the certificate is
// given out, so that there is none which cannot be revoked.
type issuedRecord struct {
	Certificates []issuedCert `json:"certificates"`
}

// revokedRecord is revoked/NAME.json. Its rename into place is the moment of
// revocation; the revocation list follows from these files.
type revokedRecord struct {
	// Barred: no token is made for the name and nothing is signed.
	Barred bool `json:"barred"`
	// At is when the name was revoked last. What was issued up to then is
	// revoked, whether it is among Certificates or not.
	At           time.Time     `json:"at"`
	Reason       string        `json:"reason,omitempty"`
	Certificates []revokedCert `json:"certificates"`
}

type revokedCert struct {
	issuedCert
	At time.Time `json:"at"`
}

// forgettable reports whether a certificate can neither be used nor renewed.
func (c issuedCert) forgettable(now time.Time) bool {
	return now.After(c.Expires.Add(RenewalGrace + skew))
}

// allows says whether the holder of a certificate of ours that is otherwise
// good may use or renew it, as far as its name's revocations are concerned.
func (r revokedRecord) allows(name Name, cert *x509.Certificate) error {
	switch {
	case r.Barred:
		return fmt.Errorf("%s was %w at %s", name, ErrRevoked, r.At.UTC().Format(time.RFC3339))
	case cert.NotBefore.Add(skew).Before(r.At.Truncate(time.Second)), // certificates know seconds only
		slices.ContainsFunc(r.Certificates, func(c revokedCert) bool { return c.Serial == cert.SerialNumber.Text(16) }):
		return fmt.Errorf("this certificate of %s was %w at %s", name, ErrRevoked, r.At.UTC().Format(time.RFC3339))
	}
	return nil
}

// A Revocation says what [CA.Revoke] did.
type Revocation struct {
	Name         Name                 `json:"name"`
	At           time.Time            `json:"at"`
	Certificates []RevokedCertificate `json:"certificates"` // revoked now or before, that have not expired
	Tokens       int                  `json:"tokens"`       // that were still open
}

// A RevokedCertificate is named for brokers that know certificates one by one.
type RevokedCertificate struct {
	Serial      string    `json:"serial"`      // hex
	Fingerprint string    `json:"fingerprint"` // hex sha256 of its DER form
	Expires     time.Time `json:"expires"`
}

// Revoke makes all certificates and join tokens of a name worthless and bars
// the name: nothing is signed for it until [CA.Allow]. To revoke what is
// revoked is no error. The revocation list is written before Revoke returns.
func (ca *CA) Revoke(name Name, reason string) (Revocation, error) {
	rev, err := ca.revoke(name, reason)
	if err != nil {
		return rev, fmt.Errorf("revoking %s: %w", name, err)
	}
	return rev, nil
}

func (ca *CA) revoke(name Name, reason string) (Revocation, error) {
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
	rec.Certificates = slices.DeleteFunc(rec.Certificates, func(c revokedCert) bool { return c.forgettable(now) })
	for _, c := range issued.Certificates {
		known := slices.ContainsFunc(rec.Certificates, func(r revokedCert) bool { return r.Serial == c.Serial })
		if known || c.forgettable(now) {
			continue
		}
		rec.Certificates = append(rec.Certificates, revokedCert{c, now})
	}
	for _, c := range rec.Certificates {
		if now.Before(c.Expires) {
			rev.Certificates = append(rev.Certificates, RevokedCertificate{c.Serial, c.Fingerprint, c.Expires})
		}
	}
	rec.Barred, rec.At, rec.Reason = true, now, reason
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
// What was revoked stays revoked. A name that is not barred stays as it is.
func (ca *CA) Allow(name Name) (changed bool, err error) {
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
		err = writeRecord(ca.dir, revokedDir, name, rec)
	}
	if err != nil {
		return false, fmt.Errorf("allowing %s: %w", name, err)
	}
	return changed, nil
}

// grant issues a certificate to whom who says, for the key of csr, in one step
// with the question whether it may: who is called with the CA locked, so that
// nothing is revoked between its answer and the record of the certificate.
func (ca *CA) grant(csr *x509.CertificateRequest, who func() (Name, error)) (Name, []byte, error) {
	hash, err := keyHash(csr.PublicKey)
	if err != nil {
		return "", nil, err
	}
	unlock, err := ca.lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	name, err := who()
	if err != nil {
		return name, nil, err
	}
	revoked, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
	switch {
	case err != nil:
		return name, nil, err
	case revoked.Barred:
		return name, nil, fmt.Errorf("%s was %w at %s", name, ErrRevoked, revoked.At.UTC().Format(time.RFC3339))
	case slices.ContainsFunc(revoked.Certificates, func(c revokedCert) bool { return c.Key == hash }):
		return name, nil, fmt.Errorf("this key of %s was %w: make a new one", name, ErrRevoked)
	}
	der, err := ca.issue(csr.PublicKey, name)
	if err != nil {
		return name, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return name, nil, err
	}
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, name)
	if err != nil {
		return name, nil, err
	}
	now := time.Now()
	issued.Certificates = slices.DeleteFunc(issued.Certificates, func(c issuedCert) bool { return c.forgettable(now) })
	issued.Certificates = append(issued.Certificates, issuedCert{cert.SerialNumber.Text(16), derHash(der), hash,
		cert.NotAfter.UTC()})
	return name, der, writeRecord(ca.dir, issuedDir, name, issued)
}

// holder returns whose certificate cert is, if it may renew: it is of this CA,
// for a client, not revoked, and good now or expired no longer ago than
// [RenewalGrace]; then its chain must have been good at its end.
func (ca *CA) holder(cert *x509.Certificate) (Name, error) {
	return mayRenew(ca.dir, ca.cert, cert)
}

func mayRenew(dir string, ca, cert *x509.Certificate) (Name, error) {
	name := Name(cert.Subject.CommonName)
	at := time.Now()
	if late := at.Sub(cert.NotAfter); late > RenewalGrace {
		return "", fmt.Errorf("%w: at %s", ErrTooOld, cert.NotAfter.UTC().Format(time.RFC3339))
	} else if late > 0 {
		at = cert.NotAfter
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{
		x509.ExtKeyUsageClientAuth}})
	if err == nil {
		err = name.Validate()
	}
	if err != nil {
		return "", err
	}
	revoked, err := readRecord[revokedRecord](dir, revokedDir, name)
	if err != nil {
		return "", err
	}
	return name, revoked.allows(name, cert)
}

// lock keeps all others, of this process or another, from changing the CA's
// directory until unlock.
func (ca *CA) lock() (unlock func(), err error) {
	ca.mu.Lock()
	f, err := os.OpenFile(filepath.Join(ca.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			f.Close()
		}
	}
	if err != nil {
		ca.mu.Unlock()
		return nil, fmt.Errorf("locking CA %s: %w", ca.dir, err)
	}
	return func() {
		f.Close() // and the lock with it
		ca.mu.Unlock()
	}, nil
}

func readRecord[R issuedRecord | revokedRecord](dir, kind string, name Name) (R, error) {
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

func writeRecord[R issuedRecord | revokedRecord](dir, kind string, name Name, rec R) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, kind, string(name)+recordExt), data, 0o600)
}

// Enrolled reports whether the identity of name in dir needs no join token:
// its certificate is of the CA in caDir and may be used or renewed. It needs to
// read the CA's directory, but not its key.
func Enrolled(caDir, dir string, name Name) bool {
	data, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil {
		return false
	}
	_, cert, err := decodePair(data)
	if err != nil || cert == nil {
		return false
	}
	data, err = os.ReadFile(filepath.Join(caDir, caCertFile))
	if err != nil {
		return false
	}
	ca, err := parseCertificate(data)
	if err != nil {
		return false
	}
	holder, err := mayRenew(caDir, ca, cert)
	return err == nil && holder == name
}

// Fingerprint is how a person or a command names a CA: "sha256:" and the hex
// hash of its certificate's DER form.
func Fingerprint(ca *x509.Certificate) string {
	return "sha256:" + derHash(ca.Raw)
}

func derHash(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
