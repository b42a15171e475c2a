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

// rootListFile is the root's own revocation list, in issuingDir: the issuing CAs that are revoked.
const rootListFile = "root-crl.pem"

// rootKey reads the root's key. It fails with [ErrRootOffline] when the key was taken away. The key is read for each
// use, so a running service forgets it once it is gone.
func (ca *CA) rootKey() (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(filepath.Join(ca.dir, caFile))
	if err != nil {
		return nil, err
	}
	key, _, err := ca.decodeRoot(data)
	if err == nil && key == nil {
		err = fmt.Errorf("%w: it was taken away by `atoll ca offline`", ErrRootOffline)
	}
	return key, err
}

// decodeRoot parses the content of ca.pem: the root's certificate, and its key unless the key was taken away.
func (ca *CA) decodeRoot(data []byte) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	if b, rest := pem.Decode(data); b != nil && b.Type == pemCert && len(rest) == 0 {
		cert, err := x509.ParseCertificate(b.Bytes)
		if err == nil && !permitsIssuers(cert) {
			err = errors.New("holds no private key")
		}
		return nil, cert, err
	}
	key, chain, err := decodePair(data)
	switch {
	case err != nil:
		return nil, nil, err
	case len(chain) != 1:
		return nil, nil, errors.New("holds no certificate, or several")
	}
	return key, chain[0], nil
}

// writeRootList signs and writes the root's revocation list: what it has, and more issuing CAs. The caller holds the
// lock. The list is valid as long as the root, because the root's key may be far away.
func (ca *CA) writeRootList(key *ecdsa.PrivateKey, more []issuer, now time.Time) error {
	last, err := readRootList(ca.dir, ca.cert)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmpl := &x509.RevocationList{ThisUpdate: now.Add(-skew), NextUpdate: ca.cert.NotAfter, Number: big.NewInt(
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
	der, err := x509.CreateRevocationList(rand.Reader, tmpl, ca.cert, key)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(ca.dir, issuingDir, rootListFile),
		pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}), 0o600)
}

// readRootList reads the root's revocation list in the directory of a CA. The list of a root that
// permits no issuing CAs is nil. A missing list of another root is an error, [fs.ErrNotExist].
func readRootList(dir string, root *x509.Certificate) (*x509.RevocationList, error) {
	if !permitsIssuers(root) {
		return nil, nil
	}
	path := filepath.Join(dir, issuingDir, rootListFile)
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
