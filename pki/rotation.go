package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"atoll.dev/internal/atomicfile"
)

// A rotation replaces the root in three steps, [CA.PrepareRoot], [CA.CompleteRoot] and [CA.RetireRoot]. The files of
// the CA record which steps are done; there is no other state:
//
//	ca-next.pem is there                     prepared: every process must trust the next root, which signs nothing yet
//	and an issuing CA below the next root    completed: this issuing CA signs; processes still trust the present root
//	ca-next.pem was renamed to ca.pem        retired
//
// A killed step may be repeated. A repeated step makes no second root and no second issuing CA.

// ErrRootInUse means that holders of certificates block the next step of a rotation. The error names them.
var ErrRootInUse = errors.New("not yet")

// errNoNextRoot means that no rotation of the root is under way.
var errNoNextRoot = errors.New("there is no next root; make one with `atoll ca root prepare`")

// RotationOptions are the options of one step of a rotation.
type RotationOptions struct {
	// RootKey is the content of the file that [CA.TakeRootKey] gave; nil: the key in the CA's directory. The CA does not
	// store RootKey.
	RootKey []byte
	// By is the user who runs the command, for the audit records.
	By string
}

// PrepareRoot makes the next root, and a cross certificate of the next root that it signs with the present root's key.
// From now on the signing service hands out both roots, and each process trusts both once it has read them. The next
// root signs nothing until [CA.CompleteRoot].
func (ca *CA) PrepareRoot(o RotationOptions) error {
	if err := ca.rotate(o, ca.prepareRoot); err != nil {
		return fmt.Errorf("preparing the next root of %s: %w", ca.dir, err)
	}
	return nil
}

// CompleteRoot makes issuing CAs below the next root, which sign from now on. It needs the next root's key. It fails
// with [ErrRootInUse] until every holder of a certificate in use has told the CA that it trusts the next root.
func (ca *CA) CompleteRoot(o RotationOptions) error {
	if err := ca.rotate(o, ca.completeRoot); err != nil {
		return fmt.Errorf("completing the next root of %s: %w", ca.dir, err)
	}
	return nil
}

// RetireRoot removes the present root with its key, and makes the next root the present one. It needs no key. It fails
// with [ErrRootInUse] while there is a certificate below the present root that is in use, or could be renewed.
func (ca *CA) RetireRoot(o RotationOptions) error {
	if err := ca.rotate(o, ca.retireRoot); err != nil {
		return fmt.Errorf("retiring the root of %s: %w", ca.dir, err)
	}
	return nil
}

// rotate makes one step of a rotation with the CA locked, and then publishes the roots and the revocation lists.
func (ca *CA) rotate(o RotationOptions, step func(o RotationOptions, given rootPairs, now time.Time) error) error {
	unlock, err := ca.lock()
	if err != nil {
		return err
	}
	defer unlock()
	given, err := ca.givenKeys(o.RootKey)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := step(o, given, now); err != nil {
		return err
	}
	if err := ca.publish(); err != nil {
		return err
	}
	_, err = ca.writeCRL(now)
	return err
}

func (ca *CA) prepareRoot(o RotationOptions, given rootPairs, now time.Time) error {
	roots := ca.roots()
	if roots.next != nil {
		return nil
	}
	key, err := ca.rootKey(roots.present, given)
	if err != nil {
		return err
	}
	data, next, err := newRoot()
	if err != nil {
		return err
	}
	cross, err := crossSign(roots.present, key, next.cert)
	if err != nil {
		return err
	}
	list, err := signRootList(next, nil, nil, now)
	if err != nil {
		return err
	}
	before, err := ca.crosses()
	if err != nil {
		return err
	}
	if err := ca.sweepNamedLists(roots.present); err != nil {
		return err
	}
	if err := ca.recordCommand(commandOn(o.By, next.cert), "PrepareRoot", authorityKind, idOf(next.cert)); err != nil {
		return err
	}
	// A process that trusts the next root needs the root's revocation list and cross certificate. So ca-next.pem is last.
	crosses := append(crossesTo(roots.present, before), cross)
	if err := atomicfile.Create(namedListPath(ca.dir, next.cert), list, 0o600); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(ca.dir, crossFile), encodeChain(crosses), 0o600); err != nil {
		return err
	}
	return atomicfile.Create(filepath.Join(ca.dir, nextFile), data, 0o600)
}

// maxCrosses is the number of cross certificates that the CA keeps. A process without roots.pem, whose CA file is older
// than that many rotations, needs a newer CA file.
const maxCrosses = 8

// crossesTo returns the chain of cross certificates that ends at a root, the oldest first. It leaves out those of next
// roots that a killed PrepareRoot never put in use.
func crossesTo(root *x509.Certificate, all []*x509.Certificate) (chain []*x509.Certificate) {
	all = slices.Clone(all)
	leads := func(x *x509.Certificate) bool { return isCrossOf(x, root) }
	for len(chain) < maxCrosses {
		i := slices.IndexFunc(all, leads)
		if i < 0 {
			break
		}
		last := all[i]
		all, chain = slices.Delete(all, i, i+1), append([]*x509.Certificate{last}, chain...)
		leads = func(x *x509.Certificate) bool { return last.CheckSignatureFrom(x) == nil }
	}
	return chain
}

// sweepNamedLists removes the revocation lists of other roots that a killed PrepareRoot or RetireRoot has left. A named
// list has the serial number of its root in its name.
func (ca *CA) sweepNamedLists(present *x509.Certificate) error {
	dir := filepath.Join(ca.dir, issuingDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), namedListPrefix) && filepath.Join(dir, e.Name()) != namedListPath(ca.dir, present) {
			if err := removeFile(dir, e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (ca *CA) completeRoot(o RotationOptions, given rootPairs, now time.Time) error {
	next := ca.roots().next
	if next == nil {
		return errNoNextRoot
	}
	have, err := ca.readIssuers()
	if err != nil {
		return err
	}
	roles := slices.DeleteFunc(slices.Clone(Roles[:]), func(r Role) bool { return have.below(next).countOf(r) > 0 })
	if len(roles) == 0 {
		return nil
	}
	key, err := ca.rootKey(next, given)
	if err != nil {
		return err
	}
	holders, err := ca.distrusting(next, now)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return errInUse("these have not told the CA that they trust the next root", holders)
	}
	if err := ca.recordCommand(commandOn(o.By, next), "CompleteRoot", authorityKind, idOf(next)); err != nil {
		return err
	}
	for _, role := range roles {
		if err := ca.makeIssuer(role, rootPair{key, next}, have.signer(role, now), now); err != nil {
			return fmt.Errorf("the issuing CA of %s: %w", role, err)
		}
	}
	return nil
}

func (ca *CA) retireRoot(o RotationOptions, _ rootPairs, now time.Time) error {
	roots := ca.roots()
	if roots.next == nil {
		return ca.removeRetired(roots.present)
	}
	have, err := ca.readIssuers()
	if err != nil {
		return err
	}
	for _, role := range Roles {
		if i := have.below(roots.next).signer(role, now); i == nil || now.After(i.cert.NotAfter) {
			return fmt.Errorf("no issuing CA of %s below the next root is valid now; run `atoll ca root complete` first", role)
		}
	}
	holders, err := ca.belowPresent(roots.next, now)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return errInUse("these have a certificate below the present root", holders)
	}
	if err := ca.recordCommand(commandOn(o.By, roots.present), "RetireRoot", authorityKind,
		idOf(roots.present)); err != nil {
		return err
	}
	// No file of an issuing CA below the present root may be there, or come back, once this root is forgotten: it could
	// neither be verified nor found in a list. So the removals are on disk before the rename.
	old := have.below(roots.present)
	if err := ca.removeIssuers(slices.Concat(old.intact, old.revoked)); err != nil {
		return err
	}
	if err := ca.syncDir(filepath.Join(ca.dir, issuingDir)); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(ca.dir, nextFile), filepath.Join(ca.dir, caFile)); err != nil {
		return err
	}
	if err := ca.syncDir(ca.dir); err != nil {
		return err
	}
	return ca.removeRetired(roots.next)
}

// removeRetired replaces the revocation list of the retired root by that of the present root, and removes the trust
// records of the finished rotation. It also ends a RetireRoot that was killed.
func (ca *CA) removeRetired(present *x509.Certificate) error {
	named := namedListPath(ca.dir, present)
	if isFile(named) {
		if err := os.Rename(named, filepath.Join(ca.dir, issuingDir, rootListFile)); err != nil {
			return err
		}
	}
	dir := filepath.Join(ca.dir, trustsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := removeFile(dir, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// Phases of a rotation.
const (
	RootPrepared  = "prepared"  // every process must trust the next root, which signs nothing
	RootCompleted = "completed" // issuing CAs below the next root sign
)

// A RotationStatus is the state of a rotation of the root.
type RotationStatus struct {
	Next  RootStatus `json:"next"`
	Phase string     `json:"phase"` // RootPrepared or RootCompleted
	Since time.Time  `json:"since"` // when the phase began
	// Waiting are the holders that block the next step: in RootPrepared, those that have not reported that they trust the
	// next root; in RootCompleted, those with a certificate below the present root.
	Waiting []Holder `json:"waiting"`
}

// rotationStatus returns the status of the rotation that is under way.
func (ca *CA) rotationStatus(roots *caRoots, have issuerSet, now time.Time) (*RotationStatus, error) {
	next, err := ca.rootStatus(roots.next)
	if err != nil {
		return nil, err
	}
	s := &RotationStatus{Next: next, Phase: RootPrepared, Since: roots.next.NotBefore.Add(skew).UTC()}
	blocking := ca.distrusting
	if below := have.below(roots.next); below.countOf(Agents) > 0 && below.countOf(Services) > 0 {
		s.Phase, s.Since = RootCompleted, below.intact[0].cert.NotBefore.Add(skew).UTC()
		blocking = ca.belowPresent
	}
	waiting, err := blocking(roots.next, now)
	s.Waiting = append([]Holder{}, waiting...)
	return s, err
}

// maxNamed bounds the holders that an error names.
const maxNamed = 10

// errInUse returns an [ErrRootInUse] that names at most maxNamed holders.
func errInUse(what string, holders []Holder) error {
	var names []string
	for _, h := range holders[:min(len(holders), maxNamed)] {
		names = append(names, string(h.Name))
	}
	if more := len(holders) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w: %s: %s (`atoll ca status` has all, and until when; `atoll mc revoke` ends the certificates of "+
		"a management cluster)", ErrRootInUse, what, strings.Join(names, ", "))
}
