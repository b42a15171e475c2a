package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// rotated returns a CA after the steps up to a phase, and its first and its next root.
func rotated(t *testing.T, phase string) (ca *CA, first, next *x509.Certificate) {
	t.Helper()
	ca = openCA(t)
	first = ca.Certificate()
	if err := ca.PrepareRoot(RotationOptions{}); err != nil {
		t.Fatal(err)
	}
	next = ca.roots().next
	if phase == RootCompleted {
		if err := ca.CompleteRoot(RotationOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return ca, first, next
}

// works fails the test unless the CA signs for both roles, and its lists are those of its roots.
func works(t *testing.T, when string, ca *CA) {
	t.Helper()
	if err := NewServer(ca).Check(t.Context()); err != nil {
		t.Errorf("%s: %v", when, err)
	}
	for _, name := range []Name{"system:broker", "edge-7"} {
		chain, err := ca.issue(newPublicKey(t), applicant{name: name, validity: time.Hour})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, _, err := verifyClient(chain, ca.Pool(), time.Now()); err != nil {
			t.Errorf("%s: %s: %v", when, name, err)
		}
	}
	data, _, err := ca.CRL()
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	lists, err := parseCRL(data)
	if err == nil {
		_, _, err = lists.verify(ca.roots().all(), time.Now())
	}
	if err != nil {
		t.Errorf("%s: %v", when, err)
	}
	if status, err := ca.Status(); err != nil || len(status.Damaged)+len(status.Warnings) > 0 {
		t.Errorf("%s: %+v %v", when, status, err)
	}
	if have, err := os.ReadFile(ca.CertFile()); err != nil || !bytes.Equal(have, ca.CertPEM()) {
		t.Errorf("%s: ca.crt is not that of the roots: %v", when, err)
	}
}

// A kill between two writes of a step leaves a CA that works, in this process and in the next one, and the step can be
// repeated.
func TestI12ARotationSurvivesAKillAtEachStep(t *testing.T) {
	for name, c := range map[string]struct {
		phase string
		kill  func(t *testing.T, ca *CA, first, next *x509.Certificate) // makes what a kill leaves of the next step
		again func(*CA) error
		want  string // the phase after the repetition; "" for a rotation that has ended
	}{
		"prepare, before the next root is there": {RootPrepared, func(t *testing.T, ca *CA, _, _ *x509.Certificate) {
			remove(t, filepath.Join(ca.dir, nextFile))
		}, func(ca *CA) error { return ca.PrepareRoot(RotationOptions{}) }, RootPrepared},
		"prepare, before ca.crt": {RootPrepared, func(t *testing.T, ca *CA, first, _ *x509.Certificate) {
			writeFile(t, ca.CertFile(), encodeCert(first.Raw))
			remove(t, ca.CRLFile())
		}, func(ca *CA) error { return ca.PrepareRoot(RotationOptions{}) }, RootPrepared},
		"complete, after the first issuing CA": {RootCompleted, func(t *testing.T, ca *CA, _, next *x509.Certificate) {
			removeIssuers(t, ca, next, Agents)
		}, func(ca *CA) error { return ca.CompleteRoot(RotationOptions{}) }, RootCompleted},
		"retire, after the first issuing CA": {RootCompleted, func(t *testing.T, ca *CA, first, _ *x509.Certificate) {
			removeIssuers(t, ca, first, Services)
		}, func(ca *CA) error { return ca.RetireRoot(RotationOptions{}) }, ""},
		"retire, before the root": {RootCompleted, func(t *testing.T, ca *CA, first, _ *x509.Certificate) {
			removeIssuers(t, ca, first, Services)
			removeIssuers(t, ca, first, Agents)
		}, func(ca *CA) error { return ca.RetireRoot(RotationOptions{}) }, ""},
		"retire, after the root": {RootCompleted, func(t *testing.T, ca *CA, first, _ *x509.Certificate) {
			removeIssuers(t, ca, first, Services)
			removeIssuers(t, ca, first, Agents)
			if err := os.Rename(filepath.Join(ca.dir, nextFile), filepath.Join(ca.dir, caFile)); err != nil {
				t.Fatal(err)
			}
		}, func(ca *CA) error { return ca.RetireRoot(RotationOptions{}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca, first, next := rotated(t, c.phase)
				wait(2 * time.Second) // the issuing CAs below the next root begin
				c.kill(t, ca, first, next)
				killed := openCAIn(t, ca.dir)
				works(t, "opened after the kill", killed)
				works(t, "going on after the kill", ca)
				for _, again := range []*CA{killed, ca} { // the second repeats what is done
					if err := c.again(again); err != nil {
						t.Fatal(err)
					}
				}
				wait(2 * time.Second)
				works(t, "repeated", ca)
				status, err := ca.Status()
				switch {
				case err != nil:
					t.Error(err)
				case c.want == "" && (status.Rotation != nil || !ca.Certificate().Equal(next)):
					t.Errorf("not retired: %+v", status)
				case c.want != "" && (status.Rotation == nil || status.Rotation.Phase != c.want):
					t.Errorf("not %s: %+v", c.want, status.Rotation)
				}
				for _, leftover := range []string{nextFile, filepath.Join(issuingDir, filepath.Base(namedListPath(ca.dir,
					next)))} {
					if c.want == "" && isFile(filepath.Join(ca.dir, leftover)) {
						t.Errorf("%s is left", leftover)
					}
				}
				// The rotation can go on to its end, and the next one begins.
				if err := errors.Join(ca.PrepareRoot(RotationOptions{}), ca.CompleteRoot(RotationOptions{})); err != nil {
					t.Fatal(err)
				}
				wait(2 * time.Second)
				if err := ca.RetireRoot(RotationOptions{}); err != nil {
					t.Fatal(err)
				}
				works(t, "at the end", ca)
			})
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// removeIssuers removes the issuing CAs of a role below a root.
func removeIssuers(t *testing.T, ca *CA, root *x509.Certificate, role Role) {
	t.Helper()
	have, err := ca.readIssuers()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range have.below(root).intact {
		if i.role == role {
			remove(t, ca.issuerFile(i.role, i.cert))
		}
	}
}

// Who keeps a rotation from its next step: each certificate that is in use, until it expires or is revoked. One
// process of several with the same name counts like any other.
func TestWhoKeepsARotationFromItsNextStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		l, stop := bubbleCA(t, ca)
		defer stop()
		join := func(name Name) *Identity {
			o := options(t, ca, "https://localhost:1", name)
			o.dial = l.dial
			return open(t, o)
		}
		is := func(when string, want ...Name) {
			t.Helper()
			if got := waiting(t, ca); !slices.Equal(got, want) {
				t.Errorf("%s: waiting %v, want %v", when, got, want)
			}
		}
		one, two := join("system:platform"), join("system:platform")
		edge, lost, stolen := join("edge-7"), join("edge-8"), join("edge-9")
		if _, err := ca.SignForCommand(newRequest(t), "system:operator"); err != nil {
			t.Fatal(err)
		}
		if err := ca.PrepareRoot(RotationOptions{}); err != nil {
			t.Fatal(err)
		}
		is("at first", "edge-7", "edge-8", "edge-9", "system:platform")
		if err := errors.Join(confirm(t, one), confirm(t, edge)); err != nil {
			t.Fatal(err)
		}
		is("one of two platforms", "edge-8", "edge-9", "system:platform")
		if _, err := ca.Revoke("edge-9", Command{}); err != nil {
			t.Fatal(err)
		}
		// A process of an earlier Atoll confirms without saying what it trusts.
		if status, _, err := two.call(t.Context(), "/v1/confirm", nil, ""); err != nil || status != 204 {
			t.Fatalf("%d %v", status, err)
		}
		is("an earlier Atoll", "edge-8", "system:platform")
		if err := confirm(t, two); err != nil {
			t.Fatal(err)
		}
		// A process that was restored without the next root says so.
		if err := edge.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		is("renewed, and not heard of since", "edge-7", "edge-8")
		wait(DefaultValidity - time.Hour)
		if err := errors.Join(confirm(t, edge), one.Renew(t.Context()), two.Renew(t.Context()), confirm(t, one),
			confirm(t, two)); err != nil {
			t.Fatal(err)
		}
		is("just before the end", "edge-8")
		wait(time.Hour + 10*time.Minute)
		is("edge-8 has expired")
		if err := edge.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := confirm(t, edge); err != nil {
			t.Fatal(err)
		}
		if err := ca.CompleteRoot(RotationOptions{}); err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Second)
		is("completed", "edge-7", "edge-8", "system:platform") // edge-8 may renew for a day
		if err := lost.Renew(t.Context()); err != nil {
			t.Fatalf("a process that was away learns no root: %v", err)
		}
		if err := errors.Join(edge.Renew(t.Context()), one.Renew(t.Context()), confirm(t, edge), confirm(t, one),
			confirm(t, lost)); err != nil {
			t.Fatal(err)
		}
		is("all but one have renewed", "system:platform")
		if err := ca.RetireRoot(RotationOptions{}); !errors.Is(err, ErrRootInUse) || !strings.Contains(err.Error(),
			"system:platform") {
			t.Errorf("retired: %v", err)
		}
		wait(DefaultValidity + RenewalGrace)
		is("after its end")
		if err := ca.RetireRoot(RotationOptions{}); err != nil {
			t.Error(err)
		}
		_ = stolen
	})
}

// The keys of the roots may be elsewhere. Each step says which root's key it wants.
func TestARotationWithTheKeysOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		first := ca.Certificate()
		firstKey := takeKey(t, ca)
		if err := ca.PrepareRoot(RotationOptions{}); !errors.Is(err, ErrRootOffline) ||
			!strings.Contains(err.Error(), Fingerprint(first)) {
			t.Errorf("prepared without a key: %v", err)
		}
		if err := ca.PrepareRoot(RotationOptions{RootKey: firstKey}); err != nil {
			t.Fatal(err)
		}
		next := ca.roots().next
		nextKey := takeKey(t, ca)
		for name, key := range map[string][]byte{"none": nil, "the wrong one": firstKey} {
			if err := ca.CompleteRoot(RotationOptions{RootKey: key}); !errors.Is(err, ErrRootOffline) ||
				!strings.Contains(err.Error(), Fingerprint(next)) {
				t.Errorf("completed with %s: %v", name, err)
			}
		}
		other := openCA(t)
		if err := ca.CompleteRoot(RotationOptions{RootKey: takeKey(t, other)}); err == nil || errors.Is(err, ErrRootOffline) {
			t.Errorf("completed with the key of another region: %v", err)
		}
		if err := ca.Issue(IssueOptions{RootKey: nextKey}); !errors.Is(err, ErrRootOffline) ||
			!strings.Contains(err.Error(), Fingerprint(first)) {
			t.Errorf("issued below the next root too early: %v", err)
		}
		if err := ca.CompleteRoot(RotationOptions{RootKey: nextKey}); err != nil {
			t.Fatal(err)
		}
		wait(2 * time.Second)
		// A revocation needs both keys, in one file.
		thief, err := ca.readIssuers()
		if err != nil {
			t.Fatal(err)
		}
		if err := ca.Issue(IssueOptions{RootKey: nextKey, Revoke: []Role{Agents}}); !errors.Is(err, ErrRootOffline) ||
			!strings.Contains(err.Error(), Fingerprint(first)) {
			t.Errorf("revoked with one key: %v", err)
		}
		both := append(slices.Clone(nextKey), firstKey...)
		if err := ca.Issue(IssueOptions{RootKey: both, Revoke: []Role{Agents}}); err != nil {
			t.Fatal(err)
		}
		lists, err := readRootLists(ca.dir, []*x509.Certificate{first, next})
		for _, i := range thief.intact {
			if err != nil || lists.has(i.root, i.cert) != (i.role == Agents) {
				t.Errorf("%s below %q: revoked %v, %v", i.role, i.root.Subject.CommonName, lists.has(i.root, i.cert), err)
			}
		}
		wait(2 * time.Second)
		works(t, "revoked", ca)
		if err := ca.RetireRoot(RotationOptions{}); err != nil {
			t.Fatal(err)
		}
		works(t, "retired", ca)
		for _, e := range readAll(t, ca.dir) {
			if bytes.Contains(e, firstKey[:200]) || bytes.Contains(e, nextKey[:200]) {
				t.Error("a root's key is in the CA's directory")
			}
		}
		if err := ca.Issue(IssueOptions{RootKey: nextKey}); err != nil {
			t.Error(err)
		}
	})
}

// The keys of both roots leave together, in one file that each command takes.
func TestTheKeysOfBothRootsAreTaken(t *testing.T) {
	ca, first, next := rotated(t, RootPrepared)
	keys := takeKey(t, ca)
	given, err := ca.givenKeys(keys)
	if err != nil || given.keyOf(first) == nil || given.keyOf(next) == nil {
		t.Fatalf("%d keys, %v", len(given), err)
	}
	if status, err := ca.Status(); err != nil || !status.Root.KeyOffline || !status.Rotation.Next.KeyOffline {
		t.Errorf("%+v %v", status, err)
	}
	if err := ca.CompleteRoot(RotationOptions{RootKey: keys}); err != nil {
		t.Fatal(err)
	}
}

// The CA hands out the cross certificates of all earlier rotations, up to a bound. So a process whose CA file has the
// first root comes to trust the present one.
func TestTheFirstRootVouchesForTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := openCA(t)
		first := newTrust([]*x509.Certificate{ca.Certificate()}, nil)
		for rotation := range maxCrosses {
			for _, step := range []func(RotationOptions) error{ca.PrepareRoot, ca.CompleteRoot, ca.RetireRoot} {
				if err := step(RotationOptions{}); err != nil {
					t.Fatal(err)
				}
				wait(2 * time.Second)
			}
			text, err := ca.trustPEM()
			if err != nil {
				t.Fatal(err)
			}
			given, err := parseCertificates([]byte(text))
			if err == nil {
				_, err = first.follow(given)
			}
			if err != nil {
				t.Fatalf("after %d rotations: %v", rotation+1, err)
			}
		}
	})
}

// newRequest returns a certificate request of a new key.
func newRequest(t *testing.T) []byte {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := encodeCSR(key, "")
	if err != nil {
		t.Fatal(err)
	}
	return csr
}
