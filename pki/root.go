package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"atoll.dev/internal/atomicfile"
)

// rootListFile is the revocation list of the root, in issuingDir: the issuing CAs that are revoked.
const rootListFile = "root-crl.pem"

// rootListPath returns the path of a root's list. The list of a root that [CA.PrepareRoot] has made has the root's
// serial number in its name until [CA.RetireRoot] gives it the name of the list before.
func rootListPath(dir string, root *x509.Certificate) string {
	if named := namedListPath(dir, root); isFile(named) {
		return named
	}
	return filepath.Join(dir, issuingDir, rootListFile)
}

// namedListPath returns the path of a root's list with the root's serial number.
func namedListPath(dir string, root *x509.Certificate) string {
	return filepath.Join(dir, issuingDir, namedListPrefix+shortSerial(root.SerialNumber)+issuingExt)
}

const namedListPrefix = "root-crl-"

// isFile reports whether there is something at a path.
func isFile(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// writeRootList signs and writes a root's revocation list: what it has, and more issuing CAs. The caller holds the
// lock. The list is valid as long as the root, because the root's key may be far away.
func (ca *CA) writeRootList(root *x509.Certificate, key *ecdsa.PrivateKey, more []issuer, now time.Time) error {
	last, err := readRootList(ca.dir, root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data, err := signRootList(rootPair{key, root}, last, more, now)
	if err != nil {
		return err
	}
	return atomicfile.Write(rootListPath(ca.dir, root), data, 0o600)
}

// signRootList signs a root's revocation list: what the last one has, which may be nil, and more issuing CAs.
func signRootList(root rootPair, last *x509.RevocationList, more []issuer, now time.Time) ([]byte, error) {
	tmpl := &x509.RevocationList{ThisUpdate: now.Add(-skew), NextUpdate: root.cert.NotAfter, Number: big.NewInt(
		now.UnixMilli())}
	if last != nil {
		tmpl.RevokedCertificateEntries = last.RevokedCertificateEntries
		if last.Number.Cmp(tmpl.Number) >= 0 {
			tmpl.Number = new(big.Int).Add(last.Number, big.NewInt(1))
		}
	}
	for _, i := range more {
		tmpl.RevokedCertificateEntries = append(tmpl.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: i.cert.SerialNumber, RevocationTime: now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, tmpl, root.cert, root.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}), nil
}

// rootLists are revocation lists of roots, by the fingerprint of the root. Roots that permit no issuing CAs have none.
type rootLists map[string]*x509.RevocationList

// has reports whether the list of a root has an issuing CA below it.
func (l rootLists) has(root, issuing *x509.Certificate) bool {
	return isListed(l[Fingerprint(root)], issuing)
}

// readRootLists reads the lists of roots in the directory of a CA. A missing one is an error, [fs.ErrNotExist]; the
// others are returned with it.
func readRootLists(dir string, roots []*x509.Certificate) (rootLists, error) {
	lists := rootLists{}
	var missing error
	for _, root := range roots {
		list, err := readRootList(dir, root)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		missing = errors.Join(missing, err)
		if list != nil {
			lists[Fingerprint(root)] = list
		}
	}
	return lists, missing
}

// readRootList reads the root's revocation list in the directory of a CA. The list of a root that
// permits no issuing CAs is nil. A missing list of another root is an error, [fs.ErrNotExist].
func readRootList(dir string, root *x509.Certificate) (*x509.RevocationList, error) {
	if !permitsIssuers(root) {
		return nil, nil
	}
	path := rootListPath(dir, root)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the list of revoked issuing CAs is missing; restore it from a backup: %w", err)
	}
	if err != nil {
		return nil, err
	}
	lists, err := parseCRL(data)
	if err == nil && len(lists.lists) != 1 {
		err = errors.New("is not one revocation list")
	}
	if err == nil {
		err = lists.lists[0].CheckSignatureFrom(root)
	}
	if err != nil {
		return nil, fmt.Errorf("file %s is damaged: %w; restore it from a backup", path, err)
	}
	return lists.lists[0], nil
}

// isListed reports whether a list, which may be nil, has a certificate.
func isListed(list *x509.RevocationList, cert *x509.Certificate) bool {
	return list != nil && slices.ContainsFunc(list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
		return e.SerialNumber.Cmp(cert.SerialNumber) == 0
	})
}
