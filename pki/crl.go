package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"atoll.dev/internal/atomicfile"
)

const (
	crlFile = "crl.pem"
	pemCRL  = "X509 CRL"
	// crlValidity is how long a server may use a revocation list. A server that gets no
	// newer list in that time refuses every certificate; by then all have expired.
	crlValidity = DefaultValidity
	// crlRefresh is the age at which an unchanged list is signed again.
	crlRefresh = time.Hour
)

// CRL returns the present revocation list as PEM: RFC 5280, signed by the CA,
// with the revoked certificates that have not expired. It signs a new list when the
// last one is an hour old or missing, or lacks a record that a killed Revoke wrote.
func (ca *CA) CRL() ([]byte, *x509.RevocationList, error) {
	data, list, err := ca.presentCRL()
	if err == nil && list != nil {
		return data, list, nil
	}
	unlock, err := ca.lock()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if data, list, err = ca.presentCRL(); err != nil || list == nil { // a damaged list is replaced
		if data, err = ca.writeCRL(time.Now()); err == nil {
			list, err = parseCRL(data)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("revocation list of CA %s: %w", ca.dir, err)
	}
	return data, list, nil
}

// crlCopy is the list that was last read from disk.
type crlCopy struct {
	data    []byte
	list    *x509.RevocationList
	size    int64
	modTime time.Time
}

// presentCRL returns the list on disk, or nil when a new one must be signed. It reads
// the file only when the file has changed, since every follower's request calls it
// four times a second.
func (ca *CA) presentCRL() ([]byte, *x509.RevocationList, error) {
	file, err := os.Stat(ca.CRLFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	// Each change of a record is a rename, which changes its directory's time.
	records, err := os.Stat(filepath.Join(ca.dir, revokedDir))
	if err != nil || records.ModTime().After(file.ModTime()) {
		return nil, nil, err
	}
	have := ca.crl.Load()
	if have == nil || have.size != file.Size() || !have.modTime.Equal(file.ModTime()) {
		have = &crlCopy{size: file.Size(), modTime: file.ModTime()}
		if have.data, err = os.ReadFile(ca.CRLFile()); err != nil {
			return nil, nil, err
		}
		if have.list, err = parseCRL(have.data); err != nil {
			return nil, nil, err
		}
		if err = have.list.CheckSignatureFrom(ca.cert); err != nil {
			return nil, nil, err
		}
		ca.crl.Store(have)
	}
	age := time.Since(have.list.ThisUpdate.Add(skew))
	if age > crlRefresh || age < -skew {
		return nil, nil, nil
	}
	return have.data, have.list, nil
}

// CRLFile returns the path of the revocation list, which is public.
func (ca *CA) CRLFile() string { return filepath.Join(ca.dir, crlFile) }

// writeCRL signs and writes a list of the revoked certificates in the records. The caller
// holds the lock.
func (ca *CA) writeCRL(now time.Time) ([]byte, error) {
	tmpl := &x509.RevocationList{ThisUpdate: now.Add(-skew), NextUpdate: now.Add(crlValidity), Number: big.NewInt(
		now.UnixMilli())}
	if data, err := os.ReadFile(ca.CRLFile()); err == nil {
		// Followers accept no list with a lower number, also when the clock was set back.
		if last, err := parseCRL(data); err == nil && last.Number.Cmp(tmpl.Number) >= 0 {
			tmpl.Number = new(big.Int).Add(last.Number, big.NewInt(1))
		}
	}
	entries, err := os.ReadDir(filepath.Join(ca.dir, revokedDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordExt)
		if !ok || strings.HasPrefix(name, atomicfile.TempPrefix) {
			continue
		}
		rec, err := readRecord[revokedRecord](ca.dir, revokedDir, Name(name))
		if err != nil {
			return nil, err
		}
		for _, c := range rec.Certificates {
			serial, ok := new(big.Int).SetString(c.Serial, 16)
			if !ok {
				return nil, fmt.Errorf("record of %s: %q is no serial number", name, c.Serial)
			}
			// Kept after the expiry for servers whose clock is behind.
			if now.Before(c.Expires.Add(crlValidity)) {
				tmpl.RevokedCertificateEntries = append(tmpl.RevokedCertificateEntries,
					x509.RevocationListEntry{SerialNumber: serial, RevocationTime: c.At})
			}
		}
	}
	der, err := x509.CreateRevocationList(rand.Reader, tmpl, ca.cert, ca.key)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der})
	return data, atomicfile.Write(ca.CRLFile(), data, 0o644)
}

// parseCRL parses one PEM revocation list. It does not verify the signature.
func parseCRL(data []byte) (*x509.RevocationList, error) {
	b, rest := pem.Decode(data)
	if b == nil || b.Type != pemCRL || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("is not one PEM revocation list")
	}
	list, err := x509.ParseRevocationList(b.Bytes)
	if err != nil {
		return nil, err
	}
	if list.Number == nil {
		return nil, errors.New("is a revocation list without a number")
	}
	return list, nil
}
