package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"atoll.dev/internal/atomicfile"
)

// ErrKeepRootKey is the answer of a caller of [CA.TakeRootKey] that only wants to see the key.
var ErrKeepRootKey = errors.New("the root's key stays")

// TakeRootKey takes the root's key out of the CA's directory, and that of the next root if it is there.
// It calls keep with the content of their files, which must be stored durably when keep returns nil.
// After an error of keep the key stays; [ErrKeepRootKey] is no error of TakeRootKey. It makes issuing
// CAs that are missing or due for renewal before; they go on without the key until they expire. It is
// refused in a region whose root signs everything, and fails with [ErrRootOffline] when no key is there.
// It removes nothing else: an earlier copy of ca.pem, such as a backup, still has the key.
//
// by is the user who runs the command, for the audit record, which is written before keep sees the key.
func (ca *CA) TakeRootKey(by string, keep func([]byte) error) error {
	if err := ca.takeRootKey(by, keep); err != nil {
		return fmt.Errorf("taking the root's key out of %s: %w", ca.dir, err)
	}
	return nil
}

func (ca *CA) takeRootKey(by string, keep func([]byte) error) error {
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	present, err := ca.presentKeys()
	if err != nil {
		return err
	}
	if err := ca.renewIssuers(time.Now()); err != nil {
		return err
	}
	var data []byte
	for _, file := range present {
		data = append(append(data, bytes.TrimSpace(file.data)...), '\n')
		if err := ca.recordCommand(commandOn(by, file.cert), "TakeRootKey", authorityKind, idOf(file.cert)); err != nil {
			return err
		}
	}
	if err := keep(data); errors.Is(err, ErrKeepRootKey) {
		return nil
	} else if err != nil {
		return err
	}
	for _, file := range present {
		if err := atomicfile.Write(file.path, encodeCert(file.cert.Raw), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// A rootFile is a file with the key of a root.
type rootFile struct {
	path string
	data []byte
	cert *x509.Certificate
}

// presentKeys returns the files with keys that can be taken away. It fails when there are none.
func (ca *CA) presentKeys() (files []rootFile, err error) {
	err = ErrRootOffline
	for _, name := range []string{caFile, nextFile} {
		file := rootFile{path: filepath.Join(ca.dir, name)}
		var readErr error
		if file.data, readErr = os.ReadFile(file.path); errors.Is(readErr, fs.ErrNotExist) && name == nextFile {
			continue
		} else if readErr != nil {
			return nil, readErr
		}
		key, cert, readErr := decodeRoot(file.data)
		switch {
		case readErr != nil:
			return nil, readErr
		case !permitsIssuers(cert):
			err = errRootSigns
		case key != nil:
			file.cert = cert
			files = append(files, file)
		}
	}
	if len(files) > 0 {
		return files, nil
	}
	return nil, err
}

// maxIssuers bounds the issuing CAs of a role that [CA.Issue] keeps: each signs a list in crl.pem.
const maxIssuers = 16

var errTooManyIssuers = errors.New("too many issuing CAs")

// errRootSigns refuses what needs issuing CAs in a region that has none.
var errRootSigns = errors.New("the root of this region permits no issuing CAs and signs itself (docs/identity.md)")

// IssueOptions say how new issuing CAs are made.
type IssueOptions struct {
	// RootKey is the content of the file that [CA.TakeRootKey] gave; nil: the key in the CA's directory. It is not
	// written there.
	RootKey []byte
	// By is the user who runs the command, for the audit records.
	By string
	// Revoke revokes all earlier issuing CAs of these roles, whose keys may have been stolen. All certificates that they
	// have signed end with them: their holders must join again, with new join tokens.
	Revoke []Role
}

// Issue makes new issuing CAs of all roles, which sign from now on. Certificates of the earlier ones stay valid and are
// renewed by the new ones, unless they are revoked. A killed call may be repeated.
func (ca *CA) Issue(o IssueOptions) error {
	if err := ca.issueAll(o); err != nil {
		return fmt.Errorf("making issuing CAs in %s: %w", ca.dir, err)
	}
	return nil
}

func (ca *CA) issueAll(o IssueOptions) error {
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	given, err := ca.givenKeys(o.RootKey)
	if err != nil {
		return err
	}
	have, err := ca.readIssuers()
	if err != nil {
		return err
	}
	root := rootPair{cert: ca.issuingRoot(have)}
	if !permitsIssuers(root.cert) {
		return errRootSigns
	}
	if root.key, err = ca.rootKey(root.cert, given); err != nil {
		return err
	}
	for _, role := range Roles {
		isRevoked := slices.Contains(o.Revoke, role)
		switch n, damaged := have.countOf(role), have.damagedOf(role); {
		case isRevoked && damaged != nil:
			return fmt.Errorf("an issuing CA of %s cannot be revoked, because file %s is damaged: %w; restore it from a "+
				"backup. Without one, move the file away; but whoever has a copy of its key can use it for a year after it "+
				"was made", role, damaged.path, damaged.err)
		case n >= maxIssuers && !isRevoked:
			return fmt.Errorf("%w: %d of %s have not expired; revoke them, or wait", errTooManyIssuers, n, role)
		}
	}
	now := time.Now()
	if len(have.intact) == 0 { // the root's list is written before the first issuing CA, see renewIssuers
		if err := ca.writeRootList(root.cert, root.key, nil, now); err != nil {
			return err
		}
	}
	// The root of each revoked one signs its list. All keys must be there before anything changes.
	revoked := slices.DeleteFunc(slices.Clone(have.intact), func(i issuer) bool {
		return !slices.Contains(o.Revoke, i.role)
	})
	revokers := []rootPair{root}
	for _, i := range revoked {
		if slices.ContainsFunc(revokers, func(p rootPair) bool { return p.cert.Equal(i.root) }) {
			continue
		}
		key, err := ca.rootKey(i.root, given)
		if err != nil {
			return fmt.Errorf("revoking the issuing CA of %s below that root: %w", i.role, err)
		}
		revokers = append(revokers, rootPair{key, i.root})
	}
	if err := ca.recordCommand(commandOn(o.By, root.cert), "IssueIssuingCAs", authorityKind, idOf(root.cert)); err != nil {
		return err
	}
	for _, role := range Roles {
		if err := ca.makeIssuer(role, root, have.signer(role, now), now); err != nil {
			return fmt.Errorf("the one of %s: %w", role, err)
		}
	}
	// The roots' lists revoke. The files are removed after they are written: a kill between the two must not leave a
	// certificate that is neither on a list nor known any more.
	for _, i := range revoked {
		if err := ca.recordCommand(commandOn(o.By, i.cert), "RevokeIssuingCA", authorityKind, idOf(i.cert)); err != nil {
			return err
		}
	}
	for _, p := range revokers {
		below := slices.DeleteFunc(slices.Clone(revoked), func(i issuer) bool { return !i.root.Equal(p.cert) })
		if err := ca.writeRootList(p.cert, p.key, below, now); err != nil {
			return err
		}
	}
	if err := ca.removeIssuers(revoked); err != nil {
		return err
	}
	_, err = ca.writeCRL(now)
	return err
}
