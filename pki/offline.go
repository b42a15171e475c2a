package pki

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"atoll.dev/internal/atomicfile"
)

// ErrKeepRootKey is the answer of a caller of [CA.TakeRootKey] that only wants to see the key.
var ErrKeepRootKey = errors.New("the root's key stays")

// TakeRootKey takes the root's key out of the CA's directory. It calls keep with the content of
// ca.pem, which must be stored durably when keep returns nil. After an error of keep the key stays;
// [ErrKeepRootKey] is no error of TakeRootKey. It makes issuing CAs that are missing or due for
// renewal before; they go on without the key until they expire. It is refused in a region whose root
// signs everything, and fails with [ErrRootOffline] when the key is not there. It removes nothing else:
// an earlier copy of ca.pem, such as a backup, still has the key.
//
// by is the user who runs the command, for the audit record, which is written before keep sees the key.
func (ca *CA) TakeRootKey(by string, keep func([]byte) error) error {
	if err := ca.takeRootKey(by, keep); err != nil {
		return fmt.Errorf("taking the root's key out of %s: %w", ca.dir, err)
	}
	return nil
}

func (ca *CA) takeRootKey(by string, keep func([]byte) error) error {
	if !ca.hasIssuers() {
		return errRootSigns
	}
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(ca.dir, caFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	key, _, err := ca.decodeRoot(data)
	if err != nil {
		return err
	}
	if key == nil {
		return ErrRootOffline
	}
	if err := ca.renewIssuers(time.Now()); err != nil {
		return err
	}
	if err := ca.recordCommand(commandOn(by, ca.cert), "TakeRootKey", authorityKind, idOf(ca.cert)); err != nil {
		return err
	}
	if err := keep(data); errors.Is(err, ErrKeepRootKey) {
		return nil
	} else if err != nil {
		return err
	}
	return atomicfile.Write(path, ca.CertPEM(), 0o600)
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
	if !ca.hasIssuers() {
		return errRootSigns
	}
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var key *ecdsa.PrivateKey
	if o.RootKey == nil {
		key, err = ca.rootKey()
	} else if key, _, err = ca.decodeRoot(o.RootKey); err == nil && key == nil {
		err = errors.New("the file holds no private key")
	}
	if err == nil && !key.PublicKey.Equal(ca.cert.PublicKey) {
		err = errors.New("the key is not that of this region's root")
	}
	if err != nil {
		return err
	}
	have, err := ca.readIssuers()
	if err != nil {
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
		if err := ca.writeRootList(key, nil, now); err != nil {
			return err
		}
	}
	if err := ca.recordCommand(commandOn(o.By, ca.cert), "IssueIssuingCAs", authorityKind, idOf(ca.cert)); err != nil {
		return err
	}
	for _, role := range Roles {
		if err := ca.makeIssuer(role, key, have.signer(role, now), now); err != nil {
			return fmt.Errorf("the one of %s: %w", role, err)
		}
	}
	// The root's list revokes. The files are removed after it is written: a kill between the two must not leave a
	// certificate that is neither on the list nor known any more.
	revoked := slices.DeleteFunc(have.intact, func(i issuer) bool { return !slices.Contains(o.Revoke, i.role) })
	for _, i := range revoked {
		if err := ca.recordCommand(commandOn(o.By, i.cert), "RevokeIssuingCA", authorityKind, idOf(i.cert)); err != nil {
			return err
		}
	}
	if err := ca.writeRootList(key, revoked, now); err != nil {
		return err
	}
	for _, i := range revoked {
		if err := ca.removeIssuer(i); err != nil {
			return err
		}
	}
	_, err = ca.writeCRL(now)
	return err
}
