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
// the CA tell which was done, so there is no other state:
//
//	ca-next.pem is there                        prepared: all trust the next root, which signs nothing
//	and an issuing CA below the next root       completed: it signs, and all trust the present root still
//	ca-next.pem was renamed to ca.pem           retired
//
// A killed step may be repeated. Repeating a step that is done changes nothing.

// ErrRootInUse means that processes keep a rotation of the root from its next step. The error names them.
var ErrRootInUse = errors.New("not yet")

// errNoNextRoot means that no rotation of the root is under way.
var errNoNextRoot = errors.New("there is no next root; make one with `atoll ca root prepare`")

// RotationOptions are those of a step of a rotation.
type RotationOptions struct {
	// RootKey is the content of the file that [CA.TakeRootKey] gave; nil: the key in the CA's directory. It is not
	// written there.
	RootKey []byte
	// By is the user who runs the command, for the audit records.
	By string
}

// PrepareRoot makes the next root. The present root vouches for it by a cross certificate, which needs the present
// root's key. From now on the signing service hands out both, and every process trusts both. The next root signs
// nothing until [CA.CompleteRoot].
func (ca *CA) PrepareRoot(o RotationOptions) error {
	if err := ca.rotate(o, ca.prepareRoot); err != nil {
		return fmt.Errorf("preparing the next root of %s: %w", ca.dir, err)
	}
	return nil
}

// CompleteRoot makes issuing CAs below the next root, which sign from now on. It needs the next root's key. It fails
// with [ErrRootInUse] while the holder of a certificate that is in use has not told the CA that it trusts the next
// root.
func (ca *CA) CompleteRoot(o RotationOptions) error {
	if err := ca.rotate(o, ca.completeRoot); err != nil {
		return fmt.Errorf("completing the next root of %s: %w", ca.dir, err)
	}
	return nil
}

// RetireRoot makes the next root the present one, and removes the present one with its key. It needs no key. It fails
// with [ErrRootInUse] while there is a certificate below the present root that is in use, or could be renewed.
func (ca *CA) RetireRoot(o RotationOptions) error {
	if err := ca.rotate(o, ca.retireRoot); err != nil {
		return fmt.Errorf("retiring the root of %s: %w", ca.dir, err)
	}
	return nil
}

// rotate makes one step of a rotation with the CA locked, and then publishes the roots and the lists.
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
	// Whoever trusts the next root needs its list of revoked issuing CAs and its cross certificate. So these come first.
	crosses := append(crossesTo(roots.present, before), cross)
	if err := atomicfile.Create(namedListPath(ca.dir, next.cert), list, 0o600); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(ca.dir, crossFile), encodeChain(crosses), 0o600); err != nil {
		return err
	}
	return atomicfile.Create(filepath.Join(ca.dir, nextFile), data, 0o600)
}

// maxCrosses bounds the cross certificates that the CA keeps. A process whose CA file has a root from before more
// rotations needs a newer file when it starts without its directory.
const maxCrosses = 8

// crossesTo returns the cross certificates that lead to a root, the oldest first. A killed PrepareRoot may have left
// others, of roots that were never used.
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

// sweepNamedLists removes the lists that a killed PrepareRoot or RetireRoot has left.
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
		return inUse("these have not told the CA that they trust the next root", holders)
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
		return inUse("these have a certificate below the present root", holders)
	}
	if err := ca.recordCommand(commandOn(o.By, roots.present), "RetireRoot", authorityKind,
		idOf(roots.present)); err != nil {
		return err
	}
	for _, i := range have.below(roots.present).intact {
		if err := ca.removeIssuer(i); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(ca.dir, nextFile), filepath.Join(ca.dir, caFile)); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(ca.dir); err != nil {
		return err
	}
	return ca.removeRetired(roots.next)
}

// removeRetired removes what is left of the root before the present one: its list, in whose place the list of the
// present one comes, and the records of who trusts the present one. A killed RetireRoot may have left them.
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
	RootPrepared  = "prepared"  // all shall trust the next root, which signs nothing
	RootCompleted = "completed" // issuing CAs below the next root sign
)

// A RotationStatus is the state of a rotation of the root.
type RotationStatus struct {
	Next  RootStatus `json:"next"`
	Phase string     `json:"phase"` // RootPrepared or RootCompleted
	Since time.Time  `json:"since"` // the phase
	// Waiting are those who keep the rotation from its next step: in RootPrepared, who has not told the CA that it trusts
	// the next root; in RootCompleted, who has a certificate below the present root.
	Waiting []Holder `json:"waiting"`
}

// rotationStatus returns the status of the rotation that is under way.
func (ca *CA) rotationStatus(roots *caRoots, have issuerSet, now time.Time) (*RotationStatus, error) {
	next, err := ca.rootStatus(roots.next)
	if err != nil {
		return nil, err
	}
	s := &RotationStatus{Next: next, Phase: RootPrepared, Since: roots.next.NotBefore.Add(skew).UTC()}
	waiting, err := ca.distrusting(roots.next, now)
	if below := have.below(roots.next); below.countOf(Agents) > 0 && below.countOf(Services) > 0 {
		s.Phase, s.Since = RootCompleted, below.intact[0].cert.NotBefore.Add(skew).UTC()
		waiting, err = ca.belowPresent(roots.next, now)
	}
	s.Waiting = append([]Holder{}, waiting...)
	return s, err
}

// maxNamed bounds the holders that an error names.
const maxNamed = 10

// inUse returns the [ErrRootInUse] of holders.
func inUse(what string, holders []Holder) error {
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
