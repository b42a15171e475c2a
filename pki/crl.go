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

// CRL returns the present revocation lists as PEM, and the first of them: RFC 5280, with
// the revoked certificates that have not expired. It signs new lists when the last ones
// are an hour old or missing, or lack a record that a killed Revoke wrote.
//
// The first list counts for the region's servers: it is signed by the issuing CA of
// services. The others have the same content, one for each issuing CA whose certificates
// may be valid, because other verifiers, such as Mosquitto, look for a list of the CA that
// signed. Each is followed by the certificate of its CA. The roots' own lists, of revoked
// issuing CAs, come last. A root without issuing CAs signs one list, and nothing follows.
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
			list, err = ca.firstList(data)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("revocation list of CA %s: %w", ca.dir, err)
	}
	return data, list, nil
}

// firstList parses revocation lists and returns the first, verified.
func (ca *CA) firstList(data []byte) (*x509.RevocationList, error) {
	lists, err := parseCRL(data)
	if err != nil {
		return nil, err
	}
	list, _, err := lists.verify(ca.roots().all(), time.Now())
	return list, err
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
	// Each change of a record or an issuing CA is a rename, which changes its directory's time.
	for _, dir := range []string{revokedDir, issuingDir} {
		records, err := os.Stat(filepath.Join(ca.dir, dir))
		if err != nil || records.ModTime().After(file.ModTime()) {
			return nil, nil, err
		}
	}
	have := ca.crl.Load()
	if have == nil || have.size != file.Size() || !have.modTime.Equal(file.ModTime()) {
		have = &crlCopy{size: file.Size(), modTime: file.ModTime()}
		if have.data, err = os.ReadFile(ca.CRLFile()); err != nil {
			return nil, nil, err
		}
		if have.list, err = ca.firstList(have.data); err != nil {
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

// writeCRL signs and writes the lists of the revoked certificates in the records. It renews issuing CAs that are due.
// The caller holds the lock.
func (ca *CA) writeCRL(now time.Time) ([]byte, error) {
	if err := ca.renewIssuers(now); err != nil {
		return nil, err
	}
	signers, err := ca.listSigners(now)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.RevocationList{ThisUpdate: now.Add(-skew), NextUpdate: now.Add(crlValidity), Number: big.NewInt(
		now.UnixMilli())}
	if data, err := os.ReadFile(ca.CRLFile()); err == nil {
		// Followers accept no list with a lower number, also when the clock was set back.
		if last, err := parseCRL(data); err == nil && last.lists[0].Number.Cmp(tmpl.Number) >= 0 {
			tmpl.Number = new(big.Int).Add(last.lists[0].Number, big.NewInt(1))
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
	var text bytes.Buffer
	for _, signer := range signers {
		der, err := x509.CreateRevocationList(rand.Reader, tmpl, signer.cert, signer.key)
		if err != nil {
			return nil, err
		}
		text.Write(pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}))
		if signer.role != "" {
			text.Write(encodeCert(signer.cert.Raw))
		}
	}
	for _, root := range ca.roots().all() {
		list, err := readRootList(ca.dir, root)
		if err != nil {
			return nil, err
		}
		if list != nil { // nil when the root signs everything
			text.Write(pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: list.Raw}))
		}
	}
	return text.Bytes(), atomicfile.Write(ca.CRLFile(), text.Bytes(), 0o644)
}

// listSigners returns the CAs that sign revocation lists now. The first is that of the services.
func (ca *CA) listSigners(now time.Time) ([]issuer, error) {
	first, err := ca.issuerOf(Services, now)
	if err != nil || first.role == "" {
		return []issuer{first}, err
	}
	have, err := ca.readIssuers()
	if err != nil {
		return nil, err
	}
	signers := []issuer{first}
	if root := ca.roots().present; !permitsIssuers(root) { // other verifiers look for a list of the one that signed
		signer, err := ca.rootIssuer(root)
		if err != nil {
			return nil, err
		}
		signers = append(signers, signer)
	}
	for _, i := range have.intact {
		if i.key != nil && !i.cert.Equal(first.cert) && now.Before(i.cert.NotAfter) {
			signers = append(signers, i)
		}
	}
	return signers, nil
}

// maxLists bounds the lists and certificates in crl.pem.
const maxLists = 256

// A crlBundle is the parsed content of crl.pem: at least one list.
type crlBundle struct {
	lists []*x509.RevocationList
	certs []*x509.Certificate
}

// parseCRL parses PEM revocation lists, and certificates between them. It verifies no
// signature.
func parseCRL(data []byte) (crlBundle, error) {
	var have crlBundle
	for len(bytes.TrimSpace(data)) > 0 {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			return crlBundle{}, errors.New("holds something that is not PEM")
		}
		switch {
		case len(have.lists)+len(have.certs) == maxLists:
			return crlBundle{}, fmt.Errorf("holds more than %d revocation lists and certificates", maxLists)
		case b.Type == pemCRL:
			list, err := x509.ParseRevocationList(b.Bytes)
			if err != nil {
				return crlBundle{}, err
			}
			if list.Number == nil {
				return crlBundle{}, errors.New("holds a revocation list without a number")
			}
			have.lists = append(have.lists, list)
		case b.Type == pemCert:
			cert, err := x509.ParseCertificate(b.Bytes)
			if err != nil {
				return crlBundle{}, err
			}
			have.certs = append(have.certs, cert)
		default:
			return crlBundle{}, fmt.Errorf("holds an unexpected %q", b.Type)
		}
	}
	if len(have.lists) == 0 {
		return crlBundle{}, errors.New("holds no revocation list")
	}
	return have, nil
}

// errNoRootList means that a bundle lacks the list of a root that is trusted. So it was made after this root was
// withdrawn, or before it was made.
var errNoRootList = errors.New("holds no list of the root")

// verify returns the list of revoked certificates and the roots' lists of revoked issuing CAs. It fails
// unless the first is signed by a valid issuing CA of services, and each other one by its root. A list of
// another issuing CA does not count, so that whoever has the key of the agents' cannot lift a
// revocation; nor does a root's own list in its place. A root that permits no issuing CAs may sign the
// first list, and has no other. roots are those that are trusted.
func (b crlBundle) verify(roots []*x509.Certificate, now time.Time) (*x509.RevocationList, rootLists, error) {
	first, issuers := b.lists[0], rootLists{}
	for _, root := range roots {
		if !permitsIssuers(root) {
			continue
		}
		for _, list := range b.lists[1:] {
			if !bytes.Equal(list.RawIssuer, root.RawSubject) {
				continue
			}
			if err := list.CheckSignatureFrom(root); err != nil {
				return nil, nil, fmt.Errorf("list of the root: %w", err)
			}
			issuers[Fingerprint(root)] = list
		}
		if issuers[Fingerprint(root)] == nil {
			return nil, nil, fmt.Errorf("%w %q", errNoRootList, root.Subject.CommonName)
		}
	}
	for _, root := range roots {
		if !permitsIssuers(root) && first.CheckSignatureFrom(root) == nil {
			return first, issuers, nil
		}
		for _, c := range b.certs {
			if permitsIssuers(root) && isIssuerOf(c, Services) && c.CheckSignatureFrom(root) == nil &&
				!now.After(c.NotAfter) && !issuers.has(root, c) && first.CheckSignatureFrom(c) == nil {
				return first, issuers, nil
			}
		}
	}
	return nil, nil, errors.New("is signed by no valid issuing CA of the region's services")
}
