package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// An issuerSet is what the files of issuing CAs have.
type issuerSet struct {
	// all are those that are not revoked, in the order in which they begin. Of each role one signs certificates. The
	// others sign only their revocation lists; the oldest have no key any more.
	all     []issuer
	damaged []damagedIssuer
}

// A damagedIssuer is an issuing CA whose file cannot be used. Its certificate is not known, nor when it was made.
type damagedIssuer struct {
	role Role
	path string
	err  error
}

// signer returns the issuing CA that signs for a role at a time: of those that have begun and have a key, the one that
// began last. It may have ended. It is nil when there is none.
//
// An issuing CA that begins later was made while the clock was ahead. Nobody would accept now what it signs.
//
// The file of a later one may be damaged. The one before it signs on, because it is still valid.
func (s issuerSet) signer(role Role, now time.Time) *issuer {
	for i := len(s.all) - 1; i >= 0; i-- {
		if s.all[i].role == role && s.all[i].hasBegun(now) && s.all[i].key != nil {
			return &s.all[i]
		}
	}
	return nil
}

// damagedOf returns a damaged one of a role, or nil.
func (s issuerSet) damagedOf(role Role) *damagedIssuer {
	i := slices.IndexFunc(s.damaged, func(d damagedIssuer) bool { return d.role == role })
	if i < 0 {
		return nil
	}
	return &s.damaged[i]
}

// countOf returns the number of issuing CAs of a role.
func (s issuerSet) countOf(role Role) (n int) {
	for _, i := range s.all {
		if i.role == role {
			n++
		}
	}
	return n
}

// readIssuers reads the files of the issuing CAs. It fails when there are some and no list of the root, since a revoked
// one would count again. A damaged file is no error, because other issuing CAs can go on without it.
func (ca *CA) readIssuers() (issuerSet, error) {
	var have issuerSet
	dir := filepath.Join(ca.dir, issuingDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return have, err
	}
	revoked, err := readRootList(ca.dir, ca.cert)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return have, err
	}
	missing := err
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), issuingExt)
		role, _, _ := strings.Cut(base, "-")
		if !ok || !slices.Contains(Roles[:], Role(role)) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		read, err := ca.readIssuer(path, Role(role))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			have.damaged = append(have.damaged, damagedIssuer{Role(role), path, err})
		case !isListed(revoked, read.cert):
			have.all = append(have.all, read)
		}
	}
	if len(have.all)+len(have.damaged) > 0 && missing != nil {
		return issuerSet{}, missing
	}
	slices.SortStableFunc(have.all, func(a, b issuer) int {
		if c := a.cert.NotBefore.Compare(b.cert.NotBefore); c != 0 {
			return c
		}
		return a.cert.SerialNumber.Cmp(b.cert.SerialNumber)
	})
	return have, nil
}

// issuersChanged returns when an issuing CA was made, revoked or removed last.
func (ca *CA) issuersChanged() (time.Time, error) {
	dir, err := os.Stat(filepath.Join(ca.dir, issuingDir))
	if err != nil {
		return time.Time{}, err
	}
	return dir.ModTime(), nil // each of these is a rename or a removal in it
}

// readIssuer reads the file of an issuing CA, and verifies that the root has certified it for the role.
func (ca *CA) readIssuer(path string, role Role) (issuer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return issuer{}, err
	}
	var key *ecdsa.PrivateKey
	chain, err := parseChain(data)
	if err != nil {
		key, chain, err = decodePair(data)
	}
	switch {
	case err != nil:
		return issuer{}, err
	case len(chain) != 1:
		return issuer{}, errors.New("it holds no certificate, or several")
	case !isIssuerOf(chain[0], role):
		return issuer{}, fmt.Errorf("it holds a certificate that is not that of an issuing CA of %s", role)
	}
	return issuer{role, chain[0], key}, chain[0].CheckSignatureFrom(ca.cert)
}

// issuerFile returns the path of the file of an issuing CA.
func (ca *CA) issuerFile(role Role, cert *x509.Certificate) string {
	return filepath.Join(ca.dir, issuingDir, string(role)+"-"+shortSerial(cert.SerialNumber)+issuingExt)
}

// shortSerial returns the part of a serial number that is in the name of an issuing CA and of its file.
func shortSerial(serial *big.Int) string { return serial.Text(36)[:8] }

// removeIssuer removes the file of an issuing CA, with its key.
func (ca *CA) removeIssuer(i issuer) error {
	path := ca.issuerFile(i.role, i.cert)
	return removeFile(filepath.Dir(path), filepath.Base(path))
}
