package process

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"atoll.dev/api/rotation"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/beneath"
)

// Files of the CA below a plane's directory. Package kube/credentials reads them.
const (
	caFile    = "pki/ca.crt" // the certificate that signs
	caKeyFile = "pki/ca.key" // its key; the header of its PEM block names the rotation that made it
	// caEarlierFile exists between the steps of a rotation. It has the certificates of earlier CAs, which are trusted
	// until the second step, and certificates of the newer CAs that the earlier ones have signed. Clients and nodes that
	// trust only an earlier CA verify new certificates by these.
	caEarlierFile = "pki/ca-earlier.crt"
	// caNextFile has all of a new CA: its key, its certificate, and then the content of caEarlierFile. It exists only
	// while the first step replaces the other files.
	caNextFile = "pki/ca-next.pem"
)

const (
	caLife           = 10 * 365 * 24 * time.Hour
	certificateBlock = "CERTIFICATE"
)

// rotateCA changes the files of the CA of a stopped plane by one step of a rotation. It may be interrupted and
// repeated. A plane that has no CA yet makes a new one. The key of an earlier CA is gone after the first step: nobody
// signs with it again. Errors never contain a key.
func rotateCA(dir string, r rotation.Order) error {
	key, rotationID, err := readCAKey(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case r.Step == rotation.Complete && rotationID != r.ID:
		return errUnprepared
	case r.Step == rotation.Complete:
		return removeKeyFile(dir, caEarlierFile)
	case rotationID == r.ID:
		return nil
	}
	present, err := readAuthority(dir)
	if err != nil {
		return err
	}
	earlier, err := beneath.Read(dir, caEarlierFile, authorityLimit)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next, err := newCA(present.cert, key, r.ID, time.Now())
	if err != nil {
		return fmt.Errorf("making a CA: %w", err)
	}
	next = append(next, present.pem...)
	if err := replaceKeyFile(dir, caNextFile, append(next, earlier...)); err != nil {
		return err
	}
	return finishCA(dir)
}

// finishCA replaces the files of the CA by those of a prepared new one, if there is one. Each start of a plane calls it
// before the rotations: an interrupted first step has changed some of the files.
func finishCA(dir string) error {
	content, err := beneath.Read(dir, caNextFile, keyFileLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	key, rest := pem.Decode(content)
	if key == nil || key.Type != privateBlock {
		return fmt.Errorf("%s does not begin with a private key", caNextFile)
	}
	certificate, earlier := pem.Decode(rest)
	if certificate == nil || certificate.Type != certificateBlock {
		return fmt.Errorf("%s has no certificate after its key", caNextFile)
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{caEarlierFile, earlier}, {caFile, pem.EncodeToMemory(certificate)}, {caKeyFile, pem.EncodeToMemory(key)},
	} {
		if err := replaceKeyFile(dir, f.name, f.content); err != nil {
			return err
		}
	}
	return removeKeyFile(dir, caNextFile)
}

// readCAKey returns the key of a plane's CA and the id of the rotation that made the key; "" for the first key.
func readCAKey(dir string) (key *ecdsa.PrivateKey, rotationID string, err error) {
	content, err := beneath.Read(dir, caKeyFile, keyFileLimit)
	if err != nil {
		return nil, "", err
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != privateBlock {
		return nil, "", errors.New("the file does not begin with an EC private key")
	}
	if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
		return nil, "", errors.New("its key cannot be read")
	}
	return key, block.Headers[rotationHeader], nil
}

// newCA returns the first part of caNextFile: a new key, its own certificate, and its certificate by the present CA.
// The new CA has another name than the present one, because verifiers look for a CA by its name.
func newCA(present *x509.Certificate, presentKey *ecdsa.PrivateKey, rotationID string, now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	name := present.Subject
	name.SerialNumber, name.ExtraNames = rotationID, nil
	template := x509.Certificate{
		Subject: name, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true,
	}
	block := pem.Block{Type: privateBlock, Headers: map[string]string{rotationHeader: rotationID}, Bytes: der}
	made := pem.EncodeToMemory(&block)
	own := template
	cross := template
	cross.NotAfter = present.NotAfter
	for _, c := range []struct {
		template, parent *x509.Certificate
		signer           *ecdsa.PrivateKey
	}{{&own, &own, key}, {&cross, present, presentKey}} {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
		if err != nil {
			return nil, err
		}
		c.template.SerialNumber = serial.Add(serial, big.NewInt(1))
		der, err := x509.CreateCertificate(rand.Reader, c.template, c.parent, key.Public(), c.signer)
		if err != nil {
			return nil, err
		}
		made = append(made, pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})...)
	}
	return made, nil
}

// readTrusted returns the certificates of all CAs that a plane trusts, the present one first.
func readTrusted(dir string, present []byte) ([]byte, error) {
	earlier, err := beneath.Read(dir, caEarlierFile, authorityLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return present, nil
	}
	if err != nil {
		return nil, err
	}
	trusted := bytes.Clone(present)
	for block, rest := pem.Decode(earlier); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", caEarlierFile, err)
		}
		if bytes.Equal(c.RawSubject, c.RawIssuer) { // cross certificates are left out: they are sent, not trusted
			trusted = append(trusted, pem.EncodeToMemory(block)...)
		}
	}
	return trusted, nil
}

// removeKeyFile removes a file of a stopped plane, if it exists.
func removeKeyFile(dir, name string) error {
	path, err := keyFilePath(dir, name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path)) // the removal is on disk before the record says so
}
