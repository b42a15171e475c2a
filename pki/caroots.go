package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"atoll.dev/internal/atomicfile"
)

const (
	// nextFile has the next root while it takes over from the present one, in the form of caFile.
	nextFile = "ca-next.pem"
	// crossFile has the cross certificates of the roots, the oldest first. The last one is of the newest root.
	crossFile = "ca-cross.pem"
)

// caRoots are the roots of a CA. All processes of the region trust them.
type caRoots struct {
	present *x509.Certificate
	next    *x509.Certificate // nil unless it takes over from the present one
	files   [2]os.FileInfo    // those that were read; nil for a missing one
}

// all returns the roots, the present one first.
func (r *caRoots) all() []*x509.Certificate {
	if r.next == nil {
		return []*x509.Certificate{r.present}
	}
	return []*x509.Certificate{r.present, r.next}
}

// roots returns the present roots of the CA: commands of other processes change them. When a file cannot be read, it
// returns those that were read last; whoever needs a root's key gets the error.
func (ca *CA) roots() *caRoots {
	have := ca.known.Load()
	if files, err := statRoots(ca.dir); err != nil || have.isOf(files) {
		return have
	}
	read, err := readRoots(ca.dir)
	if err != nil {
		return have
	}
	ca.known.Store(read)
	return read
}

// isOf reports whether the roots were read from these files.
func (r *caRoots) isOf(files [2]os.FileInfo) bool {
	for i, f := range files {
		if (f == nil) != (r.files[i] == nil) || f != nil && !isUnchanged(r.files[i], f) {
			return false
		}
	}
	return true
}

func statRoots(dir string) (files [2]os.FileInfo, err error) {
	for i, name := range []string{caFile, nextFile} {
		files[i], err = os.Stat(filepath.Join(dir, name))
		if err != nil && !(name == nextFile && errors.Is(err, fs.ErrNotExist)) {
			return files, err
		}
	}
	return files, nil
}

// readRoots reads the roots in the directory of a CA. It returns what the directory had at one time, also while
// [CA.RetireRoot] replaces the present root by the next one.
func readRoots(dir string) (*caRoots, error) {
	present, next := filepath.Join(dir, caFile), filepath.Join(dir, nextFile)
	for {
		read := &caRoots{}
		var err error
		if read.files, err = statRoots(dir); err != nil {
			return nil, err
		}
		data, err := os.ReadFile(present)
		if err != nil {
			return nil, err
		}
		nextData, err := os.ReadFile(next)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		// The next root is renamed to the present one. So the pair is of one time if the present one is the same after it.
		if again, err := os.ReadFile(present); err != nil {
			return nil, err
		} else if !bytes.Equal(data, again) {
			continue
		}
		if _, read.present, err = decodeRoot(data); err == nil && !read.present.IsCA {
			err = errors.New("holds a certificate that is not a CA's")
		}
		if err != nil {
			return nil, fmt.Errorf("CA file %s is damaged: %w; restore it from a backup, or move %s away to start a new CA, "+
				"after which every identity must enrol again", present, err, dir)
		}
		if nextData == nil {
			return read, nil
		}
		if _, read.next, err = decodeRoot(nextData); err == nil && (!isRoot(read.next) || !permitsIssuers(read.next)) {
			err = errors.New("holds a certificate that is not a root's")
		}
		if err != nil {
			return nil, fmt.Errorf("file %s of the next root is damaged: %w; restore it from a backup", next, err)
		}
		return read, nil
	}
}

// rootKey returns the key of a root: of given, which may be nil, or of the CA's directory. It fails with
// [ErrRootOffline] when the key was taken away. The key is read for each use, so a running service forgets it once
// it is gone.
func (ca *CA) rootKey(root *x509.Certificate, given rootPairs) (*ecdsa.PrivateKey, error) {
	if key := given.keyOf(root); key != nil {
		return key, nil
	}
	for _, name := range []string{caFile, nextFile} {
		data, err := os.ReadFile(filepath.Join(ca.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		key, cert, err := decodeRoot(data)
		if err != nil {
			return nil, fmt.Errorf("file %s: it %w", filepath.Join(ca.dir, name), err)
		}
		if cert.Equal(root) && key != nil {
			return key, nil
		}
	}
	return nil, fmt.Errorf("%w: it was taken away by `atoll ca offline`; the root is %q, %s", ErrRootOffline,
		root.Subject.CommonName, Fingerprint(root))
}

// rootPairs are roots with their keys, as an operator gives them to a command.
type rootPairs []rootPair

type rootPair struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// keyOf returns the key of a root, or nil.
func (p rootPairs) keyOf(root *x509.Certificate) *ecdsa.PrivateKey {
	for _, pair := range p {
		if pair.cert.Equal(root) {
			return pair.key
		}
	}
	return nil
}

// givenKeys parses what [CA.TakeRootKey] has given: one root with its key, or two. nil is none. It fails unless one of
// them is a root of this CA.
func (ca *CA) givenKeys(data []byte) (rootPairs, error) {
	if data == nil {
		return nil, nil
	}
	var pairs rootPairs
	rest := data
	for len(bytes.TrimSpace(rest)) > 0 {
		key, after := pem.Decode(rest)
		_, end := pem.Decode(after)
		pair, cert, err := decodeRoot(rest[:len(rest)-len(end)])
		switch {
		case err != nil:
			return nil, err
		case key == nil || pair == nil:
			return nil, errors.New("the file holds no private key")
		}
		pairs, rest = append(pairs, rootPair{pair, cert}), end
	}
	for _, root := range ca.roots().all() {
		if pairs.keyOf(root) != nil {
			return pairs, nil
		}
	}
	return nil, errors.New("the key is not that of this region's root")
}

// decodeRoot parses the content of ca.pem: the root's certificate, and its key unless the key was taken away.
func decodeRoot(data []byte) (*ecdsa.PrivateKey, *x509.Certificate, error) {
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

// publish writes ca.crt unless the file has the right content. The caller holds the lock.
func (ca *CA) publish() error {
	want := ca.CertPEM()
	if have, err := os.ReadFile(ca.CertFile()); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return atomicfile.Write(ca.CertFile(), want, 0o644)
}

// CertPEM returns the certificates of the roots that the region trusts, which are public: one, or two while the next
// root takes over. The present one is first.
func (ca *CA) CertPEM() []byte { return encodeChain(ca.roots().all()) }

// Certificate returns the certificate of the present root.
func (ca *CA) Certificate() *x509.Certificate { return ca.roots().present }

// CertFile returns the path of the file that holds what [CA.CertPEM] returns.
func (ca *CA) CertFile() string { return filepath.Join(ca.dir, caCertFile) }

// Pool returns a pool of the roots that the region trusts now.
func (ca *CA) Pool() *x509.CertPool { return poolOf(ca.roots().all()) }

// Pin returns the text by which [PinCA] recognizes the roots that the region trusts now: their fingerprints, separated
// by commas.
func (ca *CA) Pin() string { return fingerprintsOf(ca.roots().all()) }

// trustPEM returns the roots that the region trusts and the cross certificates by which they vouch for each other.
func (ca *CA) trustPEM() (string, error) {
	roots := ca.roots().all() // first, because PrepareRoot writes a root after its cross certificate
	crosses, err := ca.crosses()
	if err != nil {
		return "", err
	}
	return string(newTrust(roots, crosses).encode()), nil
}

// crosses returns the cross certificates of the roots.
func (ca *CA) crosses() ([]*x509.Certificate, error) {
	path := filepath.Join(ca.dir, crossFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("file %s of cross certificates %w; restore it from a backup", path, err)
	}
	return certs, nil
}
