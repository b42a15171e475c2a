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

// issuingDir is the directory of issuing CAs, in the CA's directory. Each has a file ROLE-SERIAL.pem with its
// certificate and its key. The key is not there any more when the issuing CA was replaced some time ago.
const (
	issuingDir = "issuing"
	issuingExt = ".pem"
)

// An issuerSet has the content of the files of issuing CAs.
type issuerSet struct {
	// intact are the issuing CAs whose files can be used and that are not revoked, in the order in which they begin. Of
	// each role one signs certificates, see signer. The others sign revocation lists only, while they have a key.
	intact []issuer
	// revoked are the issuing CAs that are on the list of their root. A killed [CA.Issue] has left their files, with their
	// keys.
	revoked []issuer
	// damaged are the issuing CAs whose files cannot be used. It is not known whether they are revoked.
	damaged []damagedIssuer
}

// A damagedIssuer is an issuing CA whose file cannot be used. Neither its certificate nor the time when it was made is
// known.
type damagedIssuer struct {
	role Role   // by the name of the file
	path string // of the file
	err  error  // what is wrong with the file
}

// signer returns the issuing CA that signs certificates of a role at a time: of those that have begun and have a key,
// the one that began last. It may have expired. signer returns nil when there is none.
//
// An issuing CA that has not begun was made while the clock was ahead. Peers would refuse its certificates now.
//
// A damaged one may have begun later than the one that signer returns. That one signs nevertheless: peers accept its
// certificates until it expires or is revoked.
func (s issuerSet) signer(role Role, now time.Time) *issuer {
	for i := len(s.intact) - 1; i >= 0; i-- {
		if s.intact[i].role == role && s.intact[i].hasBegun(now) && s.intact[i].key != nil {
			return &s.intact[i]
		}
	}
	return nil
}

// damagedOf returns a damaged issuing CA of a role, or nil when the role has none.
func (s issuerSet) damagedOf(role Role) *damagedIssuer {
	i := slices.IndexFunc(s.damaged, func(d damagedIssuer) bool { return d.role == role })
	if i < 0 {
		return nil
	}
	return &s.damaged[i]
}

// below returns the set without those issuing CAs that another root has certified.
func (s issuerSet) below(root *x509.Certificate) issuerSet {
	isOther := func(i issuer) bool { return !i.root.Equal(root) }
	return issuerSet{intact: slices.DeleteFunc(slices.Clone(s.intact), isOther),
		revoked: slices.DeleteFunc(slices.Clone(s.revoked), isOther), damaged: s.damaged}
}

// countOf returns the number of intact issuing CAs of a role.
func (s issuerSet) countOf(role Role) (n int) {
	for _, i := range s.intact {
		if i.role == role {
			n++
		}
	}
	return n
}

// readIssuers reads the files of all issuing CAs. It fails when there are files, but no revocation list of a root:
// without the list a revoked issuing CA would sign again. A damaged file is no error, because the other issuing CAs do
// not need it.
func (ca *CA) readIssuers() (issuerSet, error) {
	var have issuerSet
	dir := filepath.Join(ca.dir, issuingDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return have, err
	}
	roots := ca.roots().all()
	revoked, err := readRootLists(ca.dir, roots)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return have, err
	}
	listMissing := err
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), issuingExt)
		role, _, _ := strings.Cut(base, "-")
		if !ok || !slices.Contains(Roles[:], Role(role)) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		read, err := readIssuer(path, Role(role), roots)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			have.damaged = append(have.damaged, damagedIssuer{Role(role), path, err})
		case revoked.has(read.root, read.cert):
			have.revoked = append(have.revoked, read)
		default:
			have.intact = append(have.intact, read)
		}
	}
	if len(have.intact)+len(have.revoked)+len(have.damaged) > 0 && listMissing != nil {
		return issuerSet{}, listMissing
	}
	slices.SortStableFunc(have.intact, func(a, b issuer) int {
		if c := a.cert.NotBefore.Compare(b.cert.NotBefore); c != 0 {
			return c
		}
		return a.cert.SerialNumber.Cmp(b.cert.SerialNumber)
	})
	return have, nil
}

// issuersChanged returns when the files of issuing CAs last changed: when one was made, rewritten or removed.
func (ca *CA) issuersChanged() (time.Time, error) {
	dir, err := os.Stat(filepath.Join(ca.dir, issuingDir))
	if err != nil {
		return time.Time{}, err
	}
	return dir.ModTime(), nil // each change adds, renames or removes a file of the directory
}

// readIssuer reads the file of an issuing CA, and verifies that one of the roots has certified it for the role.
func readIssuer(path string, role Role, roots []*x509.Certificate) (issuer, error) {
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
	for _, root := range roots {
		if err = chain[0].CheckSignatureFrom(root); err == nil {
			return issuer{role, root, chain[0], key}, nil
		}
	}
	return issuer{}, err
}

// issuerFile returns the path of the file of an issuing CA.
func (ca *CA) issuerFile(role Role, cert *x509.Certificate) string {
	return filepath.Join(ca.dir, issuingDir, string(role)+"-"+shortSerial(cert.SerialNumber)+issuingExt)
}

// shortSerial returns the part of a serial number that is in the name of an issuing CA and of its file.
func shortSerial(serial *big.Int) string { return serial.Text(36)[:8] }

// removeIssuers removes the files of issuing CAs, with their keys.
func (ca *CA) removeIssuers(issuers []issuer) error {
	for _, i := range issuers {
		path := ca.issuerFile(i.role, i.cert)
		if err := removeFile(filepath.Dir(path), filepath.Base(path)); err != nil {
			return err
		}
	}
	return nil
}
