package pki

import (
	"cmp"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const trustsDir = "trusts"

// trustRecord is trusts/NAME.json, which the CA writes while the next root takes over. It is a file of its own because
// an earlier atoll reads the other records strictly. A record of another root counts as an empty one.
type trustRecord struct {
	Root string `json:"root"` // the fingerprint of the next root
	// Trusting are the keys, by keyHash, whose holders have told the CA that they trust the next root.
	Trusting []string `json:"trusting,omitempty"`
	// Below are the serial numbers of the name's certificates that are below the next root.
	Below []string `json:"below,omitempty"`
}

// readTrust returns the record of a name about the next root.
func (ca *CA) readTrust(name Name, next *x509.Certificate) (trustRecord, error) {
	rec, err := readRecord[trustRecord](ca.dir, trustsDir, name)
	if err == nil && rec.Root != Fingerprint(next) {
		rec = trustRecord{Root: Fingerprint(next)}
	}
	return rec, err
}

// recordTrust records whether the holder of a key trusts the next root; roots are the fingerprints of those that it
// trusts. It does nothing without a next root. The caller holds the lock.
func (ca *CA) recordTrust(name Name, key string, roots []string) error {
	next := ca.roots().next
	if next == nil {
		return nil
	}
	rec, err := ca.readTrust(name, next)
	if err != nil {
		return err
	}
	trusts := slices.Contains(roots, rec.Root)
	if trusts == slices.Contains(rec.Trusting, key) {
		return nil
	}
	issued, err := readRecord[issuedRecord](ca.dir, issuedDir, name)
	if err != nil {
		return err
	}
	rec.Trusting = slices.DeleteFunc(rec.Trusting, func(k string) bool {
		isIssued := slices.ContainsFunc(issued.Certificates, func(c issuedCert) bool { return c.Key == k })
		return k == key || !isIssued
	})
	if trusts {
		rec.Trusting = append(rec.Trusting, key)
	}
	return writeRecord(ca.dir, trustsDir, name, rec)
}

// recordBelow records that a chain is below the next root, if it is. The caller holds the lock.
func (ca *CA) recordBelow(name Name, chain []*x509.Certificate, issued issuedRecord) error {
	next := ca.roots().next
	if next == nil || chain[len(chain)-1].CheckSignatureFrom(next) != nil {
		return nil
	}
	rec, err := ca.readTrust(name, next)
	if err != nil {
		return err
	}
	rec.Below = slices.DeleteFunc(rec.Below, func(serial string) bool {
		return !slices.ContainsFunc(issued.Certificates, func(c issuedCert) bool { return c.Serial == serial })
	})
	rec.Below = append(rec.Below, chain[0].SerialNumber.Text(16))
	return writeRecord(ca.dir, trustsDir, name, rec)
}

// shouldRenew reports whether the certificate of a holder is below the present root, and its successor would be below
// the next one.
func (ca *CA) shouldRenew(holder applicant, now time.Time) bool {
	next := ca.roots().next
	if next == nil || holder.root.Equal(next) || slices.Contains(holder.by.Subject.OrganizationalUnit, commandUnit) {
		return false
	}
	signer, err := ca.issuerOf(roleOf(holder.name), now)
	return err == nil && signer.root.Equal(next)
}

// A Holder is an identity whose processes keep a rotation of the root from its next step.
type Holder struct {
	Name         Name `json:"name"`
	Certificates int  `json:"certificates"`
	// Until is when the last of these certificates ends and cannot be renewed any more. Then it keeps nobody waiting.
	Until time.Time `json:"until"`
}

// distrusting returns the holders of certificates that are in use, and have not told the CA that they trust the next
// root. Commands are left out: they are on the CA's machine, and read its directory.
func (ca *CA) distrusting(next *x509.Certificate, now time.Time) ([]Holder, error) {
	return ca.holders(next, func(c issuedCert, _ issuedRecord, lines lineRecord, rec trustRecord) time.Time {
		if key := lines.find(c.Key); key != nil && key.Unrenewable || slices.Contains(rec.Trusting, c.Key) {
			return time.Time{}
		}
		return c.Expires.Add(skew)
	}, now)
}

// belowPresent returns the holders of certificates that are in use, or can be renewed, and are not below the next
// root.
func (ca *CA) belowPresent(next *x509.Certificate, now time.Time) ([]Holder, error) {
	return ca.holders(next, func(c issuedCert, issued issuedRecord, lines lineRecord, rec trustRecord) time.Time {
		// The holder of a key uses the last certificate of it.
		if slices.ContainsFunc(issued.Certificates, func(other issuedCert) bool {
			return other.Key == c.Key && !other.Expires.Before(c.Expires) && slices.Contains(rec.Below, other.Serial)
		}) {
			return time.Time{}
		}
		if key := lines.find(c.Key); key != nil && key.Unrenewable {
			return c.Expires.Add(skew)
		}
		return c.Expires.Add(RenewalGrace + skew)
	}, now)
}

// holders returns the names of certificates that until selects. until returns the time until which a certificate
// counts; the zero time is that of one that does not count. Certificates that are revoked or superseded never count.
func (ca *CA) holders(next *x509.Certificate,
	until func(issuedCert, issuedRecord, lineRecord, trustRecord) time.Time, now time.Time) ([]Holder, error) {
	entries, err := os.ReadDir(filepath.Join(ca.dir, issuedDir))
	if err != nil {
		return nil, err
	}
	var found []Holder
	for _, e := range entries {
		text, ok := strings.CutSuffix(e.Name(), recordExt)
		name := Name(text)
		if !ok || name.Validate() != nil { // a temporary file
			continue
		}
		issued, err := readRecord[issuedRecord](ca.dir, issuedDir, name)
		if err != nil {
			return nil, err
		}
		revoked, err := readRecord[revokedRecord](ca.dir, revokedDir, name)
		if err != nil {
			return nil, err
		}
		lines, err := readRecord[lineRecord](ca.dir, linesDir, name)
		if err != nil {
			return nil, err
		}
		rec, err := ca.readTrust(name, next)
		if err != nil {
			return nil, err
		}
		h := Holder{Name: name}
		for _, c := range issued.Certificates {
			isRevoked := revoked.Barred ||
				slices.ContainsFunc(revoked.Certificates, func(r revokedCert) bool { return r.Serial == c.Serial })
			end := until(c, issued, lines, rec)
			if isRevoked || lines.isSuperseded(c.Key) || !now.Before(end) {
				continue
			}
			h.Certificates++
			if end.After(h.Until) {
				h.Until = end.UTC()
			}
		}
		if h.Certificates > 0 {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b Holder) int { return cmp.Compare(a.Name, b.Name) })
	return found, nil
}
